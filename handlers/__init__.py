"""The job types, and the payloads: programs that their local jobs run.

Handlers import only `adapters`, as an experiment's own handlers would.
"""
