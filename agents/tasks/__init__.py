"""What is wanted here against what is here: the journal, the parts and their lives as the agent sees them."""
