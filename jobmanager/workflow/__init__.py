"""Sequences of grid jobs: which step begins next, what it reads of the steps before, and one output tar of all.

A step is an ordinary grid job; only what joins the steps is here.
"""
