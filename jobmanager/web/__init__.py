"""The status page: a read-only server beside the monitor.

What each page shows lies in `pages`, how it looks in ``templates`` and ``static``; access and answers are here.
"""
