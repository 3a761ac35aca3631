"""What people read about grid jobs and local jobs: tables, bars, explanations, logs, exports, notifications.

The command line and the status page both use it. Nothing here changes a grid job.
"""
