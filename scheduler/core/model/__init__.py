"""Inputs and outputs of the engine."""
