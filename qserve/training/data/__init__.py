"""Data for a trainer: `rows` one row of any known format, `read` files row by row, `prepare` all of it to TRL's own."""
