"""One account's configuration, the paths of its state folder, and its batch systems.

`Account` is what every other room works with.
"""
