"""One account's configuration, the paths of its state folder, and its batch systems.

All other rooms work with `Account`.
"""
