"""What every request passes: authentication, limits of bodies, security headers, metrics, traces.

In: ASGI messages.
Out: the same messages, or an early answer.
"""
