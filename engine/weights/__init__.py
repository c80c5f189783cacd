"""Number formats of weights: selecting one for the machine, quantising, importance matrices.

In: a GGUF file.
Out: a model in the chosen format.
"""
