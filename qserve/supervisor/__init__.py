"""The supervisor behind `qserve up`: plan, start, wait until ready, watch, restart, drain.

It shares one process and one event loop with the gateway.

`service` tells the story; `hosted` is what is to be served; `runner` says who runs workers, `this_machine` starts them
here, and `worker` is one supervised child; `ports` opens the listening socket; `screen` talks to the user, `logs` to
log collectors; `record` keeps what happened and `measure` what is held.
"""

from qserve.supervisor import ports
from qserve.supervisor.hosted import Hosted
from qserve.supervisor.service import UpOptions, serve

__all__ = ["Hosted", "UpOptions", "ports", "serve"]
