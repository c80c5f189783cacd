"""Trains, scores and slices draft heads.

In: shards.
Out: a file of heads.
Public: recipe.Recipe, recipe.TrainOptions, train.check, slicing.slice_heads, train.train.
"""
