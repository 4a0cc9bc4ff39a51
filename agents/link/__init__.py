"""The line to the control plane: joining, the socket, plain calls."""
