"""What people read of grid jobs and local jobs: tables, bars, explanations, logs, exports.

Nothing here changes anything; the command line and the status page show the same through it.
"""
