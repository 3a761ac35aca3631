"""The end of a grid job: its outputs gathered into one tar, its success judged, what failed tried again, GRAM's files.

It begins when the last local job has ended.
"""
