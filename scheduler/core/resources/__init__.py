"""Capacity: what exists, what is free and until when, and the charge of its use."""
