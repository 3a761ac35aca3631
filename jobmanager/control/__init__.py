"""What people and GRAM may do to a grid job once it is there: cancel, suspend, resubmit, remove.

Requests are noted here and carried out here; nothing else ends or repeats a grid job.
"""
