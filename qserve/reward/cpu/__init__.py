"""One packed row through a dense bf16 decoder on a CPU: the library's matrix products, and what lies between them in C.

`build` compiles the C once per machine, `kernels` calls it, `row_pass` is the order of things.
"""
