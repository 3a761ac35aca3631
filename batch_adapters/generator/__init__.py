"""The scheduler event generator: Globus' protocol over the logs of any batch system.

Each batch system's own module reads log lines; finding, following and resuming logs, and writing events, is here.
"""
