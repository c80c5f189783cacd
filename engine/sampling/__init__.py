"""Sampling and structured output: logits to a token, grammars of JSON schemas.

In: logits and sampling parameters.
Out: sampled tokens with log probabilities.
"""
