"""The daemon of an account: the job state monitor with its generators and workers, and how it is woken.

Processes and their supervision belong here; what workers do to a grid job lies in the rooms below.
"""
