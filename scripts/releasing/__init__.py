"""A release: is the clone ready, are the files that it builds whole, does a job run where only they are installed."""
