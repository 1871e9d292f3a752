"""Grammars tried in another process: what one takes is known before the worker compiles it.

process.py  compiles each in a fork of its own, with bounds of time and memory
trials.py   the worker's side: clients take turns, and who leaves ends what runs for them
"""
