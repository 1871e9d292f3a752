"""Rewards by rule: exact match, equality of mathematical expressions, a pattern, a JSON schema, code that passes tests.

rules.py          what a rule says of a response, and of what its YAML may hold
process.py        a process that rules run in, ended and started again where one does not return
pool.py           several of them, for all requests
sandbox.py        whether a program of a model passes its tests, in two sandboxes
bubblewrap.py     how a sandbox is started, and which kinds a machine makes
seccomp.py        its filter of system calls
syscalls.py       their numbers
inside/           what runs in the sandboxes
"""

from qserve.reward.rules.rules import RULES, Rule, make_rule

__all__ = ["RULES", "Rule", "make_rule"]
