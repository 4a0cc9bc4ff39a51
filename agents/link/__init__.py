"""The connection to the control plane: enrolment, the socket, and plain HTTP calls."""
