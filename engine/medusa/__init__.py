"""Medusa heads: reading, calibrating and running them. trained/ has the heads of the default model.

In: a file of heads; hidden states.
Out: candidate tokens of each head, with probabilities.
"""
