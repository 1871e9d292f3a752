"""What a worker process is to the gateway and the supervisor, and what all workers of qserve's own share."""
