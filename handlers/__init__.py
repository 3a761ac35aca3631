"""The job types, what they share, and the payloads that their local jobs run.

One module per job type; it imports `adapters` only, as an experiment's own handler would.
"""
