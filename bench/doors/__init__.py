"""Where bad input comes in: one entry for each reader of what jobs, tools and other nodes write. See ``bench.fuzz``."""
