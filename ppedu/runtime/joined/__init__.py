"""Ranks that somebody else started (torchrun, Slurm) and that join in one run."""
