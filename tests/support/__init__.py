"""Servers, workers and a scripted engine, for the tests of all packages."""
