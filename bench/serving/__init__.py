"""Pieces of the measurement of services: a replica that costs nothing, and a client that loads it."""
