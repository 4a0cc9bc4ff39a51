"""The supervisor process of each task: forked by a small server, it starts, watches and stops the task and records
its end."""
