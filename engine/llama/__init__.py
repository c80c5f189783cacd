"""llama.cpp: the model, its context and its tensors. The only binding to it outside weights.

In: tokens, positions, sequence ids.
Out: logits, hidden states and KV cache operations.
Public: model.Model, model.Tokens, model.default_model_path, model.read_shape, context.Context.
"""
