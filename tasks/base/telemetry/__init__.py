"""Metrics and traces of a process.

In: observations.
Out: the Prometheus text format and OpenTelemetry spans.
Public: metrics.ProcessMetrics, tracing.Tracing, tracing_setup.begin, metrics_server.MetricsServer,
tracing_setup.configured, metrics.timing_redis.
"""
