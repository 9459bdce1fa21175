"""The server that lends a store over HTTP to workers on other machines, so that they need no access to the database.

    http_server    sockets, TLS, start and bounded stop                             (start reading here)
    http_app       requests and replies, over ``store_server``: the calls of a worker's store
    authenticator  who calls, by worker token (``token_file``), and what the token allows (``grants``)
    proofs         prove in every later call that a lease was lent to this worker token
    claims         claims, which do not wait, and polls, which do; ``wake_broadcast`` waits at the store for all of
                   them
    slow_requests  limits of time and connections
    proxies        the address that asked, where a proxy stands between

The messages are those of ``stowhand.remote.wire``. Never lent: schema, purge, raw SQL.
"""
