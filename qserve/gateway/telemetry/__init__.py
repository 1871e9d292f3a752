"""Telemetry of requests: records, log lines, metrics and traces."""
