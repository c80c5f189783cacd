"""What everything in the engine shares: configuration, requests and completions, errors, histograms.

In: fields as a caller gives them.
Out: validated frozen dataclasses.
"""
