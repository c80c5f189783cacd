"""Faults put into a stack of real processes under load: docs/explanation/chaos.md."""
