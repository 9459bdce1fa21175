"""The server of ``stowhand serve``: it lends one store over HTTP.

lender          starts and stops a server and its background tasks
http_app        from requests to calls, from errors to replies
bodies          what is read of a request; refusals: what is answered instead
authenticator   who calls, by worker token; tokens: what a token allows, and the file of them
store_server    the calls of workers; proofs: that a lease was lent to this token
claims          claims and polls; settlements: what may be recorded
job_reader      jobs, attempts and ends, as a token may see them
wake_broadcast  wake-ups for all polls; health and lent_throughput: what people look at
shared_store    the store, and what only a queue or a table can do
"""
