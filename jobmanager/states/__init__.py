"""The states of local jobs and grid jobs: the one place where they change.

`transitions` says what each piece of evidence changes; the other modules bring it: events, queue, drivers, reports.
"""
