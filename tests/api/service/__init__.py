"""Tests of the gateway's service, with real servers and workers behind it."""
