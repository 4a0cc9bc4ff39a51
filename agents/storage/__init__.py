"""Bundles, inputs, outputs and checkpoints of tasks, stored by digest."""
