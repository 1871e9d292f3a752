"""What commands print on a terminal: the console, bars of memory, and a plan with its speed."""
