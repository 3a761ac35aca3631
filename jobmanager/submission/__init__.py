"""From an accepted grid job to registered local jobs, each submitted exactly once.

Packing the sandbox, intents and tokens, submit commands, and the adoption of submissions with an unknown result.
"""
