"""`qserve runs`."""
