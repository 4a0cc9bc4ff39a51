"""Scenarios: a trace, a world, profiles, loads and seeds, lived through and measured side by side."""
