"""`qserve quantize`: a checkpoint in fewer bits.

methods.py         what --to takes
left_out.py        which modules stay in 16 bit
calibration.py     the texts that it is calibrated on
plan.py, spec.py   what it takes, and what the process that quantizes is told
in_environment.py  that process: a script for the environment of llm-compressor
run.py             starts it, follows it and keeps what it made
"""
