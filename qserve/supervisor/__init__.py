"""The supervisor behind `qserve up`: plan, start, wait until ready, watch, restart, drain.

It shares one process and one event loop with the gateway.

`service` runs it all; `deployment` describes a model to serve; `runner` is the interface that starts workers,
`this_machine` its implementation here, `worker` one supervised child; `ports` opens the listening socket; `screen`
prints for the user, `logs` for log collectors; `record` writes the run store, `measure` the memory.
"""

from qserve.supervisor import ports
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.options import UpOptions
from qserve.supervisor.service import serve

__all__ = ["ModelDeployment", "UpOptions", "ports", "serve"]
