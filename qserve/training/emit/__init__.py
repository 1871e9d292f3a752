"""The planned run as a command of other trainers: `commands` chooses, one file for each of them.

Flags are those of ms-swift 4.6.0, OpenRLHF 0.11.2 and verl 0.9.1;
scripts/emitted_flags.py holds every one of them to
the parsers in those wheels.
"""

from qserve.training.emit.commands import FRAMEWORKS, emitted

__all__ = ["FRAMEWORKS", "emitted"]
