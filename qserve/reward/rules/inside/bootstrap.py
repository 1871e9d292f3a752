"""The first lines that run in a sandbox: limits that can't be raised again, another user, then what is to be run.

Given to the interpreter as text; the rest comes on standard input, from the one who made the sandbox.
"""

import marshal
import os
import resource
import sys

with open(0, "rb") as given:
    uid, limits, modules, arguments = marshal.load(given)  # noqa: S302
if uid:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
os.nice(19)
for name, most in limits.items():
    kind = getattr(resource, "RLIMIT_" + name)
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
os.dup2(1, 0)
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)  # noqa: S102
module.main(*arguments)
