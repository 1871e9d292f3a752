"""What the pages ask: the API over HTTP, the metrics that it tells, and the planner as a child process."""
