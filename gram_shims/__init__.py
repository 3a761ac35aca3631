"""GRAM's door: what its Perl module and its scripts call, and the answers they get.

Calls are read, checked and answered here; whatever they do lies in `jobmanager`.
"""
