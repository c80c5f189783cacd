"""Between text and tokens: chat templates, encoding of prompts, decoding of answers.

In: prompts and messages; tokens.
Out: tokens; text that is valid UTF-8.
"""
