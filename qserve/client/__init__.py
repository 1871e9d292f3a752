"""HTTP from the client's side: requests that wait or are awaited, server-sent events, Prometheus text."""
