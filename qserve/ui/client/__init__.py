"""Data sources of the pages: the API over HTTP, its metrics, and the planner as a child process."""
