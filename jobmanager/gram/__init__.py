"""What GRAM is told: the answers to its polls, events of grid jobs, audit records.

The calls that come from GRAM enter through gram_shims; here is only what goes back.
"""
