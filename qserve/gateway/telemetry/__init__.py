"""What the gateway tells of its requests: records, log lines, metrics and traces."""
