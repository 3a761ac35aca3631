"""The command line for people: one module per group of commands, and `cli`, which lists them.

Options are read and results are printed here; whatever a command does lies in the rooms below.
"""
