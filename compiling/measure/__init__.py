"""Measures quantised files, each in its own process: speed, KL divergence, perplexity.

In: GGUF files and texts.
Out: measurements in rounds.
"""
