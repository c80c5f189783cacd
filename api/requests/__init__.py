"""Request parsing and validation: caller, ids, body, open requests, threads.

In: an HTTP request.
Out: a Caller, validated ids and bodies, or an error that names the field.
Public: threads.run_in_threadpool, schemas.ErrorBody, caller.caller_of, open_requests.OpenKey,
parsing.owner_of, schemas.page.
"""
