"""`qserve up`: plan, start, wait until ready, watch, restart, drain.

Supervisor and gateway share one process and one event loop.

`service` tells the story; `hosted` is what is to be served and how it starts; `worker` is one supervised child;
`ports` opens the front door; `screen` talks to the user, `logs` to log collectors; `record` keeps what happened and
`measure` what is held.
"""

from qserve.up import ports
from qserve.up.hosted import Hosted
from qserve.up.service import UpOptions, serve

__all__ = ["Hosted", "UpOptions", "ports", "serve"]
