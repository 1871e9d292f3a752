"""Kernels are tried in a process of their own before this one runs them: a kernel that faults takes its process along.

An illegal address leaves a CUDA context of no use, and a segmentation fault ends the process; neither can be caught.
So a `Trial` names a function that a child runs (`process.py`), and its `Verdict` is kept in a file (`verdicts.py`)
until the card, its driver, a package's release or our code is another. `ask.py` is what the others call.
"""
