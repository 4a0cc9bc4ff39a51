"""Devices as they are: cards and their health, partitions, memory, what a runtime may see."""
