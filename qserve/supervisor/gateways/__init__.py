"""Runs the gateway in the process of `qserve up`, or in several processes behind its port."""
