"""`qserve deploy`."""
