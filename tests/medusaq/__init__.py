"""Tests of the client for Python programs."""
