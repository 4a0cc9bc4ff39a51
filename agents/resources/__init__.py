"""What running tasks get and how it changes: cores, weights, memory limits, turns on a shared device."""
