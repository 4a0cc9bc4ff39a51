"""Providers: they start this cluster's agents inside an engine that somebody else runs, such as Slurm."""
