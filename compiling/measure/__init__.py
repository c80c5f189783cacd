"""Measures quantised files, each in a process of its own: speed, KL divergence, perplexity.

In: GGUF files and texts.
Out: measurements in rounds.
"""
