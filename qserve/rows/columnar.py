"""Values of columns as the rows were written: a struct holds the names of all rows, null where a row has none of it.

Left in, the arguments of a call would have those of every other call of the file, and a schema every other's fields.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_written"]

_JSON = "arrow.json"


def as_written(row: dict[str, Any], schema: Any, *, is_decoded: bool = False) -> dict[str, Any]:
    """A row of a table with this Arrow schema, without the nulls of structs; what is stored as JSON text is read,
    unless `is_decoded` says that it was.
    """
    made = {name: _value(value, schema.field(name).type, is_decoded) for name, value in row.items()}
    return {name: value for name, value in made.items() if value is not None}


def _value(value: Any, kind: Any, is_decoded: bool) -> Any:
    import pyarrow

    if getattr(kind, "extension_name", None) == _JSON:
        return json.loads(value) if isinstance(value, str) and not is_decoded else value
    if isinstance(value, dict) and pyarrow.types.is_struct(kind):
        made = {name: _value(one, kind.field(name).type, is_decoded) for name, one in value.items()}
        return {name: one for name, one in made.items() if one is not None}
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_value(one, kind.value_type, is_decoded) for one in value]
    return value
