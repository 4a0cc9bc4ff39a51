"""REST: translates HTTP into one call of the record each, and rows into JSON. One file per resource."""
