"""The states of local jobs and grid jobs: the only room that changes them.

`transitions` says what each piece of evidence changes. Other modules bring it: events, queue, drivers, reports.
"""
