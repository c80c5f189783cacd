"""Draft heads: reading, calibrating and running them. trained/ has the heads of the default model.

In: a file of heads; hidden states.
Out: candidate tokens of each head, with probabilities.
Public: layouts.HeadsLoadError, model_rows.ModelRows, model_rows.fingerprint, loader.load_heads,
weights.HeadWeights, layouts.first_line.
"""
