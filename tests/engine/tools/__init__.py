"""Tests of the rooms at the top of the engine: service and tools."""
