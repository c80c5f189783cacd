"""The engine by itself: its throughput, and what schemas, lookups and spinning cost or gain."""
