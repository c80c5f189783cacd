"""Clients and frameworks that people use, each with its own package, against the default model.

`make clients` runs them, and `make test` does not: their many packages have an environment of their own.
"""
