"""Scenarios and what comes of them."""
