"""Files and batches as OpenAI has them: kept on disk, answered in the background, resumed after a crash.

bounds.py      how large, how many, how long
records.py     a file and a batch, as they are stored and as the API shows them
database.py    the SQLite file that says what there is
files.py       the files themselves: bytes in a private folder, a row each
batches.py     the rows of batches, and whose turn it is to run one
lines.py       one line of an input file, checked
check.py       a whole input file, checked in a process of its own
results.py     answers, appended as they come; what a killed process had written is found again
run.py         one batch: lines out, answers in
runner.py      every batch of this machine that this service can answer, in the background

Several processes may share one folder: each row is in SQLite, and a batch belongs to who holds the lock of its file.
"""

from qserve.batches.bounds import FileBounds
from qserve.batches.files import FileStore
from qserve.batches.runner import BatchRunner, LineReply, Service

__all__ = ["BatchRunner", "FileBounds", "FileStore", "LineReply", "Service"]
