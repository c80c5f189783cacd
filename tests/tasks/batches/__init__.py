"""Tests of batches: their files, their leaders, and their answers."""
