"""`qserve reward`, `qserve eval-reward` and `qserve score`."""
