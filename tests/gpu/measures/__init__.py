"""Measurements on a device, each in a process of its own: `python -m tests.gpu.measures NAME`."""
