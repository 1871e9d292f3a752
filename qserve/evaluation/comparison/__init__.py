"""One model at several quantizations, and two results item by item."""
