"""Lending: a store served to workers elsewhere over HTTP, so that they need no way into the database.

    tokens      who may ask, and for what (``token_file``, ``grants``, ``doorkeeper``)
    proofs      who was lent what: proved by every later call
    claims      long polls on one shared ear (``bell``), and the memory of answers that may have been lost (``answers``)
    lender      everything else that a worker asks of its store
    app         requests and replies;  ``slow_requests`` and ``server``: sockets, TLS, and a stop that is bounded

The messages are those of ``stowhand.remote.wire``. Never lent: schema, reset, prune, raw SQL.
"""
