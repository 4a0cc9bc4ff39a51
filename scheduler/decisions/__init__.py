"""The decision log: inputs and outcome of each cycle, stored so that it can be replayed."""
