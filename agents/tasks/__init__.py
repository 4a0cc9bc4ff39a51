"""Reconciles desired and actual parts of a node: the journal, and the life cycle of parts as the agent sees it."""
