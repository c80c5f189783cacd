"""Trains draft heads for a GGUF on the GGUF's own outputs: prompts, collection, training."""
