"""Runs batch commands: with time limits, at a limited rate, with retries; `diagnosis` has what they tell the doctor.

No batch system is named here.
"""
