"""Text to tokens and back: chat templates, prompt encoding, detokenizing.

In: prompts and messages; tokens.
Out: tokens; text that is valid UTF-8.
"""
