"""Why a stage waits, when it will start, what would help."""
