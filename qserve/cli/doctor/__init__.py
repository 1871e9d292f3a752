"""`qserve doctor`."""
