"""What decides: requests, submission, states, the database, the daemon, the command line, the status page.

Its rooms have an order, and each imports only those below it: tests/packaging/test_imports.py lists them.
"""
