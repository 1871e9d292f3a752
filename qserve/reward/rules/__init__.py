"""Rewards by rule: exact match, equality of mathematical expressions, a pattern, a JSON schema, code that passes tests.

rules.py          what a rule says of a response, and of what its YAML may hold
sandbox.py        where code of a model runs, if there is such a place
process.py        a process that rules run in, ended and started again where one does not return
"""

from qserve.reward.rules.rules import RULES, Rule, make_rule

__all__ = ["RULES", "Rule", "make_rule"]
