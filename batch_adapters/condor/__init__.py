"""HTCondor: its event log for the generator."""
