"""LSF, and OpenLava, which keeps its file formats."""
