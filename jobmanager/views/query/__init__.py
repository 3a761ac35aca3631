"""XPath and XQuery over the job database, each question answered by a process of its own within limits.

`runner` starts that process, `child` is what runs in it.
"""
