"""Backups: a folder with the database, the files beside it and, where asked for, the keys; and the way back."""
