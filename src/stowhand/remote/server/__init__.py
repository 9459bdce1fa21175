"""Server of ``stowhand serve``: it lends one store over HTTP.

lender             starts and stops a server and its background tasks
http_app           requests and replies
bodies             bodies of requests; refusals: replies to refused requests
authenticator      callers, identified by their worker token; tokens: rights of tokens, and the tokens file
store_server       calls of workers; proofs: proofs that a token holds a lease
claims             claims and polls; settlements: checks of settlements
job_reader         jobs, attempts and outcomes that a token may see
wake_broadcast     wake-ups for all polls
remote_throughput  counts of settlements; health: liveness and readiness
shared_store       the lent store, and the operations that only a queue or a table has
"""
