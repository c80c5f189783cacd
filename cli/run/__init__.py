"""`medusaq run`: a file of prompts through a stack, resumable, to a file of results.

In: prompts.
Out: results in the order of the input.
"""
