"""Sampling and structured output: logits to a token, grammars of JSON schemas.

In: logits and sampling parameters.
Out: sampled tokens with log probabilities.
Public: sampler.SampledToken, sampler.Constraint, grammar.Grammars, sampler.Sampler,
grammar.response_grammar, tool_grammar.answer_grammar.
"""
