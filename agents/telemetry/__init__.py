"""Measurements of the host, its devices and its tasks, and their transmission."""
