"""Read models that pages and the API share: the querysets and filters of each resource, and its form for a user."""
