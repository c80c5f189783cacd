"""Faults put into a stack of real processes under load, and what becomes of the work: docs/chaos.md."""
