"""What a request is before anything is done with it: who calls, which ids, which body.

In: an HTTP request.
Out: a Caller, checked ids and models of the bodies, or an error that names the field.
"""
