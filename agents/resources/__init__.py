"""The resources of running tasks and their changes: cores, weights, memory limits, turns on a shared device."""
