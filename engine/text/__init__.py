"""Text to tokens and back: chat templates, prompt encoding, detokenizing.

In: prompts and messages; tokens.
Out: tokens; text that is valid UTF-8.
Public: prompt_encoder.PromptEncoder, detokenizer.TextReader, detokenizer.TextStream.
"""
