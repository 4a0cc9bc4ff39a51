"""How numbers are written in languages where Django's own way is not ours."""
