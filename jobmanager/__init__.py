"""What decides: requests, submission, states, the database, the daemon, the command line, the status page.

Its rooms have an order, and each imports only those below it: tests/packaging/test_imports.py lists them.
"""


class UserError(Exception):
    """Something that a person can understand and act on: the command line prints the message, without a traceback."""
