"""Runs batch commands: with time limits, at a limited rate, with retries. No batch system is named here."""
