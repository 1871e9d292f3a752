"""A dense bf16 decoder on a CPU: the library's matrix products in few shapes, and what lies between them in C.

`build` compiles the C once per machine, `kernels` calls it, `dense` is the order of things within a layer. Who attends
to what is the caller's: texts of a packed row (the reward worker), or sequences over pages (the chat worker).
"""
