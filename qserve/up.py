"""The supervisor: plan, start, wait until ready, watch, restart, drain."""
