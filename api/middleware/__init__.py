"""ASGI middleware: authentication, body limits, security headers, metrics, traces.

In: ASGI messages.
Out: the same messages, or an early response.
"""
