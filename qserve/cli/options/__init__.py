"""Options that several commands take, and what becomes of their values."""
