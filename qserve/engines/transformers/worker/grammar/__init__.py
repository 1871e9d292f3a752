"""Grammars compiled for the sampler, with bounds on what a client's grammar may take.

vocabulary.py   the tokens that a grammar chooses from
matcher.py      a grammar in llguidance's hands
compiled.py     grammars made ready once and kept, with bounds
refusals.py     what llguidance says of a structure that it does not take, in plain words
trials.py       each grammar is compiled in a process with bounds first: clients take turns
trial_process.py   that process: a fork for each grammar, with bounds of time and memory
"""
