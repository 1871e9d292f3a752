"""What `bench/peers_suites.py` puts in the place of the peers' own servers, and why tests of theirs don't pass here.

plugin.py    what the tests import in place of the peers' packages
server.py    the server that they ask
reasons.py   why a test does not pass
"""
