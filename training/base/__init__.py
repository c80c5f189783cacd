"""Shared parts of training: errors and progress.

In: numbers.
Out: text for people.
"""
