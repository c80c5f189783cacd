"""Tests of what the engine stands on: the rooms base, host and llama."""
