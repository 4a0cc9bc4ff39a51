"""What people are told by mail: which of their jobs have ended."""
