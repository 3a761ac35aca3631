"""Slurm: what its controller logs and what its commands say."""
