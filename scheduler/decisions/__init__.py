"""The log of decisions: what each cycle knew and decided, kept so that it can be decided once more."""
