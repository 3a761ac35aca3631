"""``samgrid gram install``: the files that make us a gatekeeper's service: put there, checked, removed.

Nothing here runs while GRAM calls the job manager.
"""
