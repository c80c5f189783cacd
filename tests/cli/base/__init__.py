"""Tests of the rooms base and gateway."""
