"""The machine and its files: memory, digests of files, a cache of measurements.

In: paths, measured values.
Out: sizes, digests, the values measured at an earlier start.
Public: file_digest.sha256, measurement_cache.machine, idle_time.Piece,
measurement_cache.identity, measurement_cache.read_measurement, measurement_cache.write_measurement,
measurement_cache.read_entry, measurement_cache.write_entry, other_load.OtherLoad,
system_memory.look_at_memory, system_memory.Memory.
"""
