"""The ``yard`` command. One file per verb; packages outside the standard library are imported only when needed."""
