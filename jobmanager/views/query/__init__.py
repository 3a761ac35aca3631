"""Questions in XPath and XQuery to the job database: each is answered by a child process with limits.

Whoever asks needs `query`; `child` is the process, and `selection` what needs no tree of all documents.
"""
