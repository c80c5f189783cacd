"""Collects hidden states and next tokens of a model as it generates, in shards.

In: prompts and a model.
Out: shards on the disk.
"""
