"""`qserve batch`."""
