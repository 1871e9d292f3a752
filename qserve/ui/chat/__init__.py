"""Data and HTML of the chat page; no components."""
