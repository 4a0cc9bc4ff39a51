"""The ``yard`` command. One file per verb; nothing outside the standard library is imported before it is needed."""
