"""`qserve eval`."""
