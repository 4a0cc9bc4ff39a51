"""Job files with parameters, from which people submit jobs: of a project, of everybody, and those that are shipped."""
