"""What pages and the API read: for each resource its querysets, its filters, and read models for a user."""
