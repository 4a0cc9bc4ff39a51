"""Devices of a host: probes, health, partitions, memory, and the variables that make them visible to a runtime."""
