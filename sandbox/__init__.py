"""The sandbox: packs a work area, renders the driver that runs it, and brings the outputs back in one tar."""
