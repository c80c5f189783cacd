"""Composes training prompts from materials of our own.

In: a seed.
Out: prompts without licence questions.
"""
