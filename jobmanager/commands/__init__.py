"""The command line for people: one module per group of commands, and `cli`, which lists them.

Options are read and results printed here; the work of a command lies in the rooms below.
"""
