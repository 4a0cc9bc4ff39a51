"""The engine's command line, without a database: one module per family of commands."""
