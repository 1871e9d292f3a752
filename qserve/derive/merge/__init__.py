"""`qserve merge`: `adapter` is what was trained, `changes` what it changes in the base, `run` does it."""
