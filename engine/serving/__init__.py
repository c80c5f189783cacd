"""What the service adds to the steps: counters, and the text of running requests for callbacks.

In: step reports; sequences.
Out: EngineMetrics; pieces of text.
Public: metrics.EngineMetrics, metrics.Metrics, text_listener.Listener.
"""
