"""The web UI: chat, scores, memory and latency, and the planner as a form. It speaks only HTTP to the API.

Gradio is imported in this package alone, and only when a page is built.
"""
