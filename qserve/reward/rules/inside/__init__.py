"""What runs inside the sandboxes of the rule `code`: a program in one, its tests in another, and a pipe between them.

known.py          what of the standard library both sides have: it goes by its name
kinds.py          values that go as data: containers that can be changed, and values that can't
codec.py          bytes of a message: plain data, names, and numbers for what stays on its own side
peer.py           asks the other side and answers it
program.py        the program's side
proxy.py          what a test has in its hands in place of an object of the program's
errors.py         the program's exceptions, raised again for the tests
tester.py         the tests' side, which alone says whether they passed

Nothing is imported from qserve but these files, and of the standard library only what starts in a millisecond.
"""
