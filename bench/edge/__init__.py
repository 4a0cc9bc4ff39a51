"""A node that is cut off for a day, by a clock that is driven: what of its own jobs is lost, and what is doubled."""
