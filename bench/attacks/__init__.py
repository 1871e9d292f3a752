"""The attacks of `bench/attack.py`, a file for each subject; each is one function whose docstring says what it does."""

from attacks import bodies, judges, machine, rules, shares, structures
from attacks.service import Attack

__all__ = ["ATTACKS"]

_SUBJECTS = (bodies, judges, machine, rules, shares, structures)
ATTACKS: dict[str, Attack] = {one.__name__: one for subject in _SUBJECTS for one in subject.ATTACKS}
