"""The engines that come with qserve, a folder each, registered in qserve/planner/engine.py.

engine.py   what is registered: the planner, and by dotted strings what only some commands load
plan/       what the engine holds in memory, and the settings that put a plan into effect: core and planner alone
detect      what this machine has for it
launch      how its worker is started, read and diagnosed
wire/       how the gateway reads and rewrites its requests, and what its errors say (vLLM alone)
reward      how it scores with reward models
"""
