"""Converts job files of other systems: one pure function each, which returns a job file and what of the source it
leaves out."""
