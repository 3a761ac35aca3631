"""What finds faults before they cost jobs: ``samgrid doctor`` and ``samgrid check-handler``.

Checks report; they change nothing.
"""
