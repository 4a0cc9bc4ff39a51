"""The REST API: each request is one call of a service or query, and rows become JSON. One file per resource."""
