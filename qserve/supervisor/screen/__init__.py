"""Terminal output of `qserve up`: progress of the start, a summary when ready, a line when it stops.

console.py   prints: phases, notes, rows that fit the terminal
worker.py    what is shown of a worker
ready.py     the rows of the summary: address, models, memory, example
details.py   the further rows of --verbose
end.py       the last lines
"""

from qserve.supervisor.screen.console import Screen, ServiceConsole
from qserve.supervisor.screen.end import End
from qserve.supervisor.screen.ready import check_rows, ready_rows
from qserve.supervisor.screen.worker import ReadyWorker

__all__ = ["End", "ReadyWorker", "Screen", "ServiceConsole", "check_rows", "ready_rows"]
