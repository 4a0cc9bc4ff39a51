"""How long what ended is kept: by kind, by project, previewed, and removed in small steps."""
