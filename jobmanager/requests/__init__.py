"""From the text of a request to an accepted grid job: RSL, old job description files, job types, declared attributes.

A request is read, checked and accepted here, or refused with a list of all faults.
"""
