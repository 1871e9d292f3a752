"""`qserve report`."""
