"""Which request may run on which devices and nodes, and how well."""
