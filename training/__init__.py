"""Trains draft heads for a GGUF on the model's own outputs: prompts, collection, training."""
