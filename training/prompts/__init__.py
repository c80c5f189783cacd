"""Composes training prompts from texts written for this project.

In: a seed.
Out: prompts that no licence restricts.
Public: prompts.read_prompts, prompts.compose, prompts.write_prompts.
"""
