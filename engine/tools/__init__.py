"""Tools around the engine: decode benchmark, memory estimate, model registry, an engine that fails all
requests.

In: a model's file or name.
Out: measurements, estimates, registered models.
Public: model_registry.Register, model_registry.NamedModel, memory_estimate.needed,
decode_benchmark.DecodeBenchmark, decode_benchmark.Pairs, decode_benchmark.run_in_turns,
memory_estimate.Needed.
"""
