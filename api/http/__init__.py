"""HTTP itself: connection limits, errors, headers, byte ranges, server-sent events.

In: bytes and exceptions.
Out: answers in one shape, and connections within their bounds.
"""
