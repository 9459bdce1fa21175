"""Where a worker process is put together: stores, workers, signals, supervision, health."""
