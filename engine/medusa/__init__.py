"""Medusa heads: reading, calibrating and running them. trained/ has the heads of the default model.

In: a file of heads; hidden states.
Out: candidate tokens of each head, with probabilities.
Public: layouts.HeadsLoadError, lm_head.lm_head_rows, lm_head.fingerprint, loader.load_heads,
weights.HeadWeights, layouts.first_line.
"""
