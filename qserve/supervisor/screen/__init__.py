"""Terminal output of `qserve up`: progress of the start, a summary when ready, a line when it stops.

console.py   prints: phases, notes, rows that fit the terminal
ready.py     the rows of the summary: address, models, memory, example
details.py   the further rows of --verbose
end.py       the last lines
"""

from qserve.supervisor.screen.console import Screen, ServiceConsole
from qserve.supervisor.screen.end import End
from qserve.supervisor.screen.ready import ReadyWorker, check_rows, ready_rows

__all__ = ["End", "ReadyWorker", "Screen", "ServiceConsole", "check_rows", "ready_rows"]
