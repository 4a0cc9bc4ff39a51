"""Schedules: job files that are submitted again and again, at the times of a cron line."""
