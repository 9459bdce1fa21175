"""Where everything is put together: settings, stores, workers, processes, signals."""
