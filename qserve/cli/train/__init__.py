"""`qserve train`: `options` declares flags, `command` runs it, `fitting` finds what fits, `follow` shows progress."""
