"""ASGI middleware: authentication, body limits, security headers, metrics, traces.

In: ASGI messages.
Out: the same messages, or an early response.
Public: auth.Authentication, body_limit.BodyLimit, metrics.HttpMetrics, tracing.HttpTracing,
security_headers.SecurityHeaders, security_headers.add_docs.
"""
