"""`qserve up`: plan, start, wait until ready, watch, restart, drain.

Supervisor and gateway share one process and one event loop.

`service` tells the story; `hosted` is what is to be served and how it starts; `worker` is one supervised child;
`ports` opens the front door; `screen` talks to the user, `logs` to log collectors; `record` keeps what happened and
`measure` what is held.
"""

import sys
import types
from typing import Any

from qserve.up import ports
from qserve.up.hosted import Hosted
from qserve.up.service import UpOptions, serve

__all__ = ["Hosted", "UpOptions", "ports", "serve"]


class _Callable(types.ModuleType):
    """`qserve.up("demo")` is a function of the library, and this package has its name: importing it sets the attribute
    `up` of `qserve`. So the package can be called.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from qserve.library.serving import up

        return up(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
