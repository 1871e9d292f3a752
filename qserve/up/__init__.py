"""`qserve up`: plan, start, wait until ready, watch, restart, drain.

Supervisor and gateway share one process and one event loop.

`service` tells the story; `worker` is one supervised child; `ports` opens the front door; `screen` talks to the user.
"""

from qserve.up.service import UpOptions, serve

__all__ = ["UpOptions", "serve"]
