"""Beside serving: benchmark of decoding, memory estimates, the register of models, an engine that refuses.

In: a model.
Out: measurements and estimates.
"""
