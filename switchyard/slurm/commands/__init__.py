"""Commands of Slurm's names over the REST interface of a control plane, for scripts that call them.

Each module is one command with ``run(words) -> exit code``; what scripts parse is as Slurm 22.05 prints it.
"""
