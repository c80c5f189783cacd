"""Metrics and traces of a process.

In: observations.
Out: the Prometheus text format and OpenTelemetry spans.
"""
