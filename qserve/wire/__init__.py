"""The formats on the wire: request schemas, the error shape, server-sent events. Shared by gateway and workers; no I/O."""
