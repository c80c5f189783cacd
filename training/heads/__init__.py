"""Trains, scores and slices Medusa heads.

In: shards.
Out: a file of heads.
"""
