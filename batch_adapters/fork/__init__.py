"""The batch system that travels with us: local jobs as processes of this machine, in a number of slots."""
