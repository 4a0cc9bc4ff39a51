"""The same action on many jobs: at once, or as an operation in the background."""
