"""Jobs, their states and outcomes, and their JSON. Pure: no I/O, no clock."""
