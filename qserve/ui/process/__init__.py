"""The UI's process: Gradio as one ASGI application, on a socket behind the gateway or on a port of this machine."""
