"""Measures quantised files, each in its own process: speed, KL divergence, perplexity.

In: GGUF files and texts.
Out: measurements in rounds.
Public: quality.Quality, rounds.Rounds, speed.Speed, quality.most_rows, texts.read_text.
"""
