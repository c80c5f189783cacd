"""Clients and frameworks that people use, each with its own package, against the default model.

`make clients` runs them. They need more packages than all the rest: they have an environment of their own, and
are no part of `make test`.
"""
