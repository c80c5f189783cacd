"""Medusa heads: reading, calibrating and running them; the heads of the default model.

In: hidden states.
Out: the tokens that each head expects, with probabilities.
"""
