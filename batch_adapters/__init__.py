"""Batch systems as data, the event generator that follows their logs, and the embedded batch system ``fork``.

Each batch system has its own folder; the modules that all share (`adapter`, `running`, `generator`) name none of them.
"""
