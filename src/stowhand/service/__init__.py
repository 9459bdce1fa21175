"""Worker processes: stores, workers, signals, supervision and health."""
