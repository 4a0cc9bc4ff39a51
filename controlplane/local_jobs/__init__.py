"""Jobs that were submitted on a node itself while it was cut off, and how they come into the record, once each."""
