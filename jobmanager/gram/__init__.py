"""What GRAM is told: answers to its polls, events of grid jobs, audit records.

Calls from GRAM enter through gram_shims; this room only has what goes back.
"""
