"""A store lent over HTTP: the messages, the server that lends it, the client that works with it."""
