"""qserve: from "will it fit?" to a measured, evaluated Qwen service in one command."""

__version__ = "0.1.0"
