"""Readers ask one vendor's library each, in a process of their own: see :mod:`agents.devices.readers.library`."""
