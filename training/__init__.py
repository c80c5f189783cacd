"""Making draft heads for a GGUF from what that GGUF itself writes: prompts, collecting, training."""
