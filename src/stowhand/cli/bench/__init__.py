"""``stowhand bench``: how fast a store is on this machine, with this product as it is."""
