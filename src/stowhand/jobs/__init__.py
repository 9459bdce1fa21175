"""What a job is, what may become of it, and how it is written. Pure."""
