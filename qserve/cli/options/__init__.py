"""Options that several commands share, and their conversion to requests."""
