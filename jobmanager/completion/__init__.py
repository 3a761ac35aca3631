"""The end of a grid job: proves that local jobs have ended, retries failed ones, gathers outputs, judges success.

It also delivers GRAM's stdout and stderr, and records which notifications were sent.
"""
