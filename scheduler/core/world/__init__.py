"""The state that one planner keeps between cycles."""
