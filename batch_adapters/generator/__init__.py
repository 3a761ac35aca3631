"""The scheduler event generator: Globus' protocol over the logs of any batch system.

What a log line means lies beside its batch adapter; finding, following and resuming logs and writing events is here.
"""
