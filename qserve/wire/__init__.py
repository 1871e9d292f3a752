"""The formats on the wire: request schemas, errors, server-sent events. Shared by gateway and workers; no I/O."""
