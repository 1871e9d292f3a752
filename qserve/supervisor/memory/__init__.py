"""Free memory of the machine: watched, and given back before the kernel ends a process or the machine freezes."""
