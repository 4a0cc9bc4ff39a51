"""The user of a task and what it may reach: users, folders by handle, control groups."""
