"""`qserve plan` and `qserve plan train`."""
