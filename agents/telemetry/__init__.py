"""What is measured of the host, its devices and its tasks, and how it is sent."""
