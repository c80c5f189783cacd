"""Benchmarks: seeded, warmed up, one printed line each. Run them with nothing else on the machine."""
