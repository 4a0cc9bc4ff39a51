"""Backups: a folder with the database, its files and, on request, the keys; and their restore."""
