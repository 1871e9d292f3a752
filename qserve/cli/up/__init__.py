"""`qserve up`."""
