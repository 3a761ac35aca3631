"""The sandbox: packs a work area, renders the driver that runs it, and gathers the outputs into one tar."""
