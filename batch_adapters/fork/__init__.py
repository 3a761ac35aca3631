"""The embedded batch system: runs local jobs as processes of this machine, in a number of slots."""
