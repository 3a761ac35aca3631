"""The programs that GRAM's Perl module and scripts call. They read, check and answer; `jobmanager` does the work."""
