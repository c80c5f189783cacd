"""Tools around the engine: decode benchmark, memory estimate, model registry, an engine that fails all
requests.

In: a model's file or name.
Out: measurements, estimates, registered models.
Public: model_registry.Register, model_registry.NamedModel, memory_estimate.needed,
decode_benchmark.DecodeBenchmark, memory_estimate.Needed, decode_benchmark.Pairs.
"""
