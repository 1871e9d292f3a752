"""Response schemas of the routes, for /openapi.json.

Only the document is built from them: answers are relayed as bytes, and an engine may say more than stands here.

service.py       how the service is, which models it has, and everything with a status from 400 on
reports.py       memory and work, planned beside measured
generations.py   chats, completions, tokens
files.py         files and batches
adapters.py      LoRA adapters that were loaded
tables.py        which route answers what
"""

from qserve.wire.responses.reports import HostProcessMemory
from qserve.wire.responses.service import AnthropicErrorBody, ErrorBody, TeiErrorBody
from qserve.wire.responses.tables import OF_METHOD, OF_ROUTE

__all__ = ["OF_METHOD", "OF_ROUTE", "AnthropicErrorBody", "ErrorBody", "HostProcessMemory", "TeiErrorBody"]
