"""Functions: one file of code behind an address, as a service whose replicas run our small server."""
