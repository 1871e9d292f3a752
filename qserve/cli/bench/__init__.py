"""`qserve bench`."""
