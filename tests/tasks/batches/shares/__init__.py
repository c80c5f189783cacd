"""Whose jobs come when: capacity, shares of keys, and slices of time."""
