"""The vLLM worker: the real `vllm` OpenAI server as a child process, started from a plan.

Nothing here imports vLLM; only `print_flags`, which runs in a process of its own, asks the installed engine for its
flags, and vLLM's workers import `tiles`. `command` makes the command line, `log` reads what the engine prints,
`failure` says why it did not start.
"""
