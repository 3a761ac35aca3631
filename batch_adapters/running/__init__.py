"""Everything that touches a batch system: its commands run with time limits, at a limited rate, and tried again later.

No batch system is named here: what is particular to one lies in its adapter.
"""
