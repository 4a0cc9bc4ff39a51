"""The process beside each task: started by a small fork server, it watches, stops and writes down the end."""
