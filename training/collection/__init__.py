"""Collects hidden states and next tokens of a model while it generates, in shards.

In: prompts and a model.
Out: shards on disk.
Public: dataset.Answer, dataset.Dataset, dataset.Batch, collect.CollectOptions,
dataset.batch.
"""
