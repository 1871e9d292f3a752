"""`qserve chat` and `qserve run`: a chat in the terminal."""
