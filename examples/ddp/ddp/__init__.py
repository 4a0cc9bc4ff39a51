"""Data-parallel training on several nodes that any of them may leave."""
