"""The engines that qserve plans for: a folder each, registered in qserve/planner/engine.py."""
