"""Slurm's habits: ``#SBATCH`` scripts become job files, and commands of Slurm's names speak to a control plane."""
