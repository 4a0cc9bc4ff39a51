"""Scenarios: a trace, a world, profiles, loads and seeds, simulated and compared."""
