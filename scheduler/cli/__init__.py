"""The engine from the command line, without the record: one module per family of commands."""
