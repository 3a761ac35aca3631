"""PBS: OpenPBS, PBS Professional and Torque."""
