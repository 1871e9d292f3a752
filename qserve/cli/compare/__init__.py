"""`qserve compare`."""
