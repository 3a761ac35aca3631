"""The XML job database: the documents of grid jobs and local jobs, and the tables derived from them.

No rule about states or submissions is here: this room stores, finds and counts.
"""
