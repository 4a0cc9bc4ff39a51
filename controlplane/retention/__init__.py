"""Retention of ended records: by kind, by project, previewed, and removed in small steps."""
