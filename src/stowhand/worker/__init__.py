"""The life of a job: claimed, run, recorded, while its lease is kept true."""
