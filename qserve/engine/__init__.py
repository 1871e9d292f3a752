"""Engines: the worker processes behind the gateway. `base` says what a worker is; one package per engine."""
