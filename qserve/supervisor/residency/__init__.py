"""Models of one service that take turns in memory: loaded when they are asked for, as the plan's bytes allow."""
