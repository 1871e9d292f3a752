"""The planner: pure arithmetic from facts to one frozen `Plan`."""
