"""What was probably meant by a field that a request does not have.

names.py      the names that a request may hold, by their places, from its JSON schema
meant.py      the place that a wrong name belongs to
requests.py   both for qserve's own schemas
"""

from qserve.wire.hints.meant import hint_for
from qserve.wire.hints.names import FieldNames, names_of

__all__ = ["FieldNames", "hint_for", "names_of"]
