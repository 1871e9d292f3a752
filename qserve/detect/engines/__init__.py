"""What stands against an engine on this machine: a module an engine, found by what the registry names."""
