"""What there is, what of it is free, and until when; what using it is worth."""
