"""Whose rights a task has, and what it may reach: users, folders by handle, control groups."""
