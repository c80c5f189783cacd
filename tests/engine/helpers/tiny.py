"""A tiny F32 llama model with random weights, written as a real GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

VOCAB = 320
WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 2, 128, 1024
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def write_tiny_gguf(
    path: Path,
    seed: int = 7,
    chat_template: str | None = CHAT_TEMPLATE,
    without: bytes = b"",
    end: int = 2,
    width: int = WIDTH,
    feed_forward: int = FEED_FORWARD,
    experts: int = 0,
    split_tensors: int = 0,
) -> str:
    """Byte tokens for every byte, then letter pairs; logits spread enough that greedy ties are rare.

    without: characters that no token is to write. end: the token that ends a generation. experts: of each
    layer's feed forward part, half of which a token is sent to; 0 is a plain one. split_tensors: so many
    to a file, of several that get numbers; 0 writes one file.
    """
    rng = np.random.default_rng(seed)
    writer = llama_writer(path, CONTEXT, width, LAYERS, feed_forward, HEADS, split_tensors=split_tensors)
    writer.add_name("Tiny")
    writer.add_head_count_kv(KV_HEADS)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(experts // 2)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer, without, end)
    if chat_template:
        writer.add_chat_template(chat_template)

    def tensor(name: str, *shape: int, scale: float) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape) * scale).astype(np.float32))

    head = width // HEADS
    tensor("token_embd.weight", VOCAB, width, scale=1.0)
    tensor("output.weight", VOCAB, width, scale=0.4)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    for i in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(width, dtype=np.float32))
        tensor(f"blk.{i}.attn_q.weight", width, width, scale=0.3)
        tensor(f"blk.{i}.attn_k.weight", KV_HEADS * head, width, scale=0.3)
        tensor(f"blk.{i}.attn_v.weight", KV_HEADS * head, width, scale=0.3)
        tensor(f"blk.{i}.attn_output.weight", width, width, scale=0.3)
        kind, many = ("_exps", (experts,)) if experts else ("", ())
        if experts:
            tensor(f"blk.{i}.ffn_gate_inp.weight", experts, width, scale=0.3)
        tensor(f"blk.{i}.ffn_gate{kind}.weight", *many, feed_forward, width, scale=0.3)
        tensor(f"blk.{i}.ffn_up{kind}.weight", *many, feed_forward, width, scale=0.3)
        tensor(f"blk.{i}.ffn_down{kind}.weight", *many, width, feed_forward, scale=0.3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def llama_writer(
    path: Path,
    context: int,
    width: int,
    layers: int,
    feed_forward: int,
    heads: int,
    epsilon: float = 1e-5,
    split_tensors: int = 0,
) -> GGUFWriter:
    """It has the shape of a llama model; the vocabulary and the tensors are to follow."""
    writer = GGUFWriter(str(path), "llama", split_max_tensors=split_tensors)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_layer_norm_rms_eps(epsilon)
    writer.add_rope_dimension_count(width // heads)
    return writer


def write_tiny_mamba(path: Path) -> str:
    """A recurrent model, whose state cannot be rolled back."""
    rng = np.random.default_rng(3)
    writer = GGUFWriter(str(path), "mamba")
    inner, state, rank, kernel = 2 * WIDTH, 16, 4, 4
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer)

    def tensor(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape) * scale).astype(np.float32))

    tensor("token_embd.weight", VOCAB, WIDTH, scale=1.0)
    tensor("output.weight", VOCAB, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    for i in range(LAYERS):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(WIDTH, dtype=np.float32))
        tensor(f"blk.{i}.ssm_in.weight", 2 * inner, WIDTH)
        tensor(f"blk.{i}.ssm_conv1d.weight", inner, kernel)
        tensor(f"blk.{i}.ssm_conv1d.bias", inner)
        tensor(f"blk.{i}.ssm_x.weight", rank + 2 * state, inner)
        tensor(f"blk.{i}.ssm_dt.weight", inner, rank)
        tensor(f"blk.{i}.ssm_dt.bias", inner)
        writer.add_tensor(f"blk.{i}.ssm_a", -np.ones((inner, state), dtype=np.float32))
        tensor(f"blk.{i}.ssm_d", inner)
        tensor(f"blk.{i}.ssm_out.weight", WIDTH, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def add_vocabulary(writer: GGUFWriter, without: bytes = b"", end: int = 2) -> None:
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    letters = "abcdefghij"
    pairs = [(a + b).encode() for a in letters for b in letters][: VOCAB - len(tokens)]
    tokens += pairs
    types += [TokenType.NORMAL] * len(pairs)
    for byte in without:
        types[3 + byte] = TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
