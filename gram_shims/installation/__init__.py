"""``samgrid gram``: installs, checks and removes the files that register the job manager with a gatekeeper.

Nothing here runs while GRAM calls the job manager.
"""
