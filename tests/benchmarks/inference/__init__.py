"""The engine by itself: its throughput, its answers, and what schemas, lookups and spinning cost or gain."""
