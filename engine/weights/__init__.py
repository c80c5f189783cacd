"""Number formats of weights: which to load, quantising, importance matrices.

In: a GGUF file.
Out: a model in the chosen format.
"""
