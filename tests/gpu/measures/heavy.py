"""A model whose weights have any size and take no room on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tests.engine.helpers.tiny import CONTEXT, VOCAB, add_vocabulary, llama_writer

WIDTH, LAYERS, HEADS = 1024, 64, 16
ITEM = np.dtype(np.float32)


def write_heavy_gguf(path: Path, size: int) -> str:
    """At least `size` bytes of weights, all 0: a file with a hole in the place of its tensors.

    Where the folder is in memory, a process that maps the file takes as much memory.
    """
    feed_forward = size // (3 * WIDTH * LAYERS * ITEM.itemsize) + 1
    writer = llama_writer(path, CONTEXT, WIDTH, LAYERS, feed_forward, HEADS)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, WIDTH),
        "output.weight": (VOCAB, WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{norm}.weight": (WIDTH,) for norm in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{i}.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{name}.weight": (feed_forward, WIDTH) for name in ("gate", "up")}
        shapes[f"blk.{i}.ffn_down.weight"] = (WIDTH, feed_forward)
    tensors = 0
    for name, shape in shapes.items():
        count = int(np.prod(shape)) * ITEM.itemsize
        writer.add_tensor_info(name, shape, ITEM, count)
        tensors += count + writer.data_alignment
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + tensors)
    return str(path)
