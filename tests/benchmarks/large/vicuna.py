"""What a model of Vicuna's shapes takes: `python -m tests.benchmarks.large.vicuna [--record [FILE]]`.

Random weights in Vicuna's shapes, few layers of them; their time is that of any others. It takes 7 GB of
memory, 4 GB of the disk of temporary files, and three minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, TokenType
from safetensors.torch import save_file

from common.processor import usable_cores
from engine.core.sequence import SequenceState
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.weights.quantise import requantise
from tests.benchmarks.drafting.heads import TOP, draft, running
from tests.benchmarks.inference.engine import Probe
from tests.engine.helpers.float_heads import GivenRows
from tests.engine.helpers.tiny import llama_writer
from tests.support.measuring.report import Report, Rows, add_record, shown_command

WIDTH, FEED_FORWARD, VOCABULARY, ATTENTION_HEADS, LAYERS = 4096, 11008, 32000, 32, 32
HEADS, SLICED = 5, 8192
LM_HEAD = VOCABULARY * WIDTH  # weights
LAYER = 4 * WIDTH**2 + 3 * WIDTH * FEED_FORWARD  # weights
SERVED = "q4_k_m"
REPEATS = 30
FEW = 2  # layers of the recorded table


def write_layers(path: Path, layers: int) -> None:
    """A model of so many layers in F16, with a vocabulary of bytes and of pieces that are never read."""
    writer = llama_writer(path, 2048, WIDTH, layers, FEED_FORWARD, ATTENTION_HEADS, epsilon=1e-6)
    writer.add_file_type(1)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    rest = range(VOCABULARY - len(tokens))
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *(f"piece{number}" for number in rest)])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([*types, *(TokenType.NORMAL for _ in rest)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)

    def add(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16), raw_dtype=GGMLQuantizationType.F16)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.float32))

    add("token_embd", VOCABULARY, WIDTH)
    add("output", VOCABULARY, WIDTH)
    add_norm("output_norm")
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            add_norm(f"blk.{layer}.{norm}")
        for matrix in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{matrix}", WIDTH, WIDTH)
        for matrix in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{matrix}", FEED_FORWARD, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_random_heads(folder: Path, vocabulary: int) -> HeadSource:
    """Five heads, each with an lm_head of its own over so many tokens."""
    generator = torch.Generator().manual_seed(0)
    path, state = folder / "heads.safetensors", {}
    lm_head = torch.randn(vocabulary, WIDTH, generator=generator).half() * 0.02
    for head in range(HEADS):
        state[f"{head}.0.linear.weight"] = torch.randn(WIDTH, WIDTH, generator=generator).half() * 0.02
        state[f"{head}.0.linear.bias"] = torch.zeros(WIDTH).half()
        state[f"{head}.1.weight"] = lm_head.clone()
    save_file(state, path)
    heads = load_heads(
        str(path), width=WIDTH, vocab_size=vocabulary, model_rows=GivenRows(), threads=usable_cores()
    )
    path.unlink()
    return HeadSource(heads, TOP)


def guess_ms(source: HeadSource, sequences: list[SequenceState], probe: Probe) -> float:
    """Median milliseconds of all heads for a state, each after a step of the model, which empties caches."""
    times = []
    for _ in range(REPEATS):
        probe.decode_ms(1, repeats=1)
        began = time.perf_counter()
        draft(source, sequences, HEADS)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def measure(folder: Path, layers: int, table: Rows) -> None:
    write_layers(folder / "f16.gguf", layers)
    for format in (SERVED, "q8_0"):
        began = time.perf_counter()
        requantise(str(folder / "f16.gguf"), str(folder / f"{format}.gguf"), format)
        rate = (2 * LM_HEAD + layers * LAYER) / (time.perf_counter() - began)
        whole_s = (2 * LM_HEAD + LAYERS * LAYER) / rate
        table.row(f"to {format}", f"{rate / 1e6:.0f} million weights a second", f"{whole_s:.0f} s")
    (folder / "f16.gguf").unlink()
    probe = Probe(folder / f"{SERVED}.gguf", cells=256)
    probe.fill(0, 20)
    step_ms = probe.decode_ms(1, REPEATS)
    whole_s = step_ms / 1e3 * (LM_HEAD + LAYERS * LAYER) / (LM_HEAD + layers * LAYER)
    table.row(f"a token, {SERVED}, without drafts", f"{step_ms:.1f} ms", f"{whole_s:.2f} s")
    states = np.random.default_rng(0).standard_normal((1, WIDTH)).astype(np.float32)
    sequences = running(states, None)
    for vocabulary in (VOCABULARY, SLICED):
        took = f"{guess_ms(load_random_heads(folder, vocabulary), sequences, probe):.1f} ms"
        table.row(f"a draft of all {HEADS} heads over {vocabulary:,} tokens", took, took)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=FEW, help="of the 32")
    add_record(parser)
    options = parser.parse_args()
    report = Report(shown_command("tests.benchmarks.large.vicuna", sys.argv[1:]), options.record)
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-vicuna-") as folder,
        report.table("vicuna", "what", "measured", "for all layers", keep=options.layers == FEW) as table,
    ):
        measure(Path(folder), options.layers, table)
        table.note(f"Random weights, {options.layers} of {LAYERS} layers and the lm_head.")


if __name__ == "__main__":
    main()
