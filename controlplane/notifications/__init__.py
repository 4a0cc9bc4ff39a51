"""Mail to users about the ends of their jobs."""
