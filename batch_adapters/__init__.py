"""Batch systems as data, the event generator that follows their logs, and the embedded batch system ``fork``.

A batch system has a folder of its own; what all share (`adapter`, `running`, `generator`) names none of them.
"""
