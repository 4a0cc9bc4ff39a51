"""The asynchronous twin of the client; its modules are made from those of the same names one folder up."""
