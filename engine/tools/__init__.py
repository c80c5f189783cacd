"""Tools around the engine: decode benchmark, memory estimate, model registry, an engine that fails all
requests.

In: a model's file or name.
Out: measurements, estimates, registered models.
"""
