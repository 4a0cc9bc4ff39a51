"""What the engine is given and what it gives back."""
