"""Heads cut to a draft vocabulary: what they still guess, which tokens stay, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.base.errors import ModelLoadError
from engine.host.file_digest import sha256
from engine.llama.model import Model, default_model_path
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import Heads
from engine.medusa.model_rows import FINGERPRINT, ModelRows, fingerprint
from tests.engine.helpers.float_heads import FloatHeads
from tests.engine.helpers.tiny import VOCAB, WIDTH
from training.base.errors import PromptsError, TrainingError
from training.heads.slicing import Sliced, slice_heads
from training.heads.token_ranking import BLOCK, count_tokens, ranked, read_texts

HEADS, KEPT = 5, 100
HIDDEN = np.random.default_rng(3).standard_normal((40, WIDTH)).astype(np.float32)
PATH = np.random.default_rng(4).integers(0, VOCAB, (len(HIDDEN), HEADS)).astype(np.int32)


def full_heads(
    own_lm_head: bool = True,
    layers: int = 1,
    vocab: int = VOCAB,
    dtype: torch.dtype = torch.bfloat16,
    sees_path: bool = False,
) -> dict[str, Tensor]:
    """As FasterDecoding keeps them: version 1, or 2 without lm_heads of their own; or as ours that see the
    path.
    """
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int, scale: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    state = {}
    for head in range(HEADS):
        for layer in range(layers):
            inputs = 2 + head if sees_path and layer == 0 else 1
            state[f"{head}.{layer}.linear.weight"] = some(WIDTH, inputs * WIDTH, scale=0.1)
            state[f"{head}.{layer}.linear.bias"] = some(WIDTH, scale=0.1)
        if own_lm_head:
            state[f"{head}.{layers}.weight"] = some(vocab, WIDTH, scale=0.4)
    return state


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """A folder as the published one of Vicuna: its config.json names fewer heads than there are."""
    folder = tmp_path / "heads"
    folder.mkdir()
    torch.save(full_heads(), folder / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\nand then it sleeps\n" * 20)
    return path


def load(path: Path, gguf: str) -> FloatHeads:
    return FloatHeads.load(str(path), width=WIDTH, vocab_size=VOCAB, model_rows=ModelRows(gguf))


def served(path: Path, gguf: str) -> Heads:
    return load_heads(str(path), width=WIDTH, vocab_size=VOCAB, model_rows=ModelRows(gguf))


def check_restricted(full: Path, sliced: Path, gguf: str) -> None:
    """Drafts of the sliced heads are those of the full ones among the kept tokens, with their shares.

    In full precision and as they are served: a row of weights is rounded alike, whatever stands beside it.
    """
    vocabulary = load(sliced, gguf).draft_vocabulary
    assert vocabulary is not None
    for loaded in (load, served):
        some = loaded(sliced, gguf)
        tokens, chances = loaded(full, gguf).propose(HIDDEN, some.heads, VOCAB, path=PATH)
        expected, shares = some.propose(HIDDEN, some.heads, 10, path=PATH)
        for place in np.ndindex(*tokens.shape[:2]):
            among = np.isin(tokens[place], vocabulary)
            assert among.sum() == len(vocabulary) < VOCAB
            restricted = chances[place][among] / chances[place][among].sum()
            np.testing.assert_allclose(restricted[:10], shares[place], rtol=1e-3)
            assert tokens[place][among][:10].tolist() == expected[place].tolist()


def test_published_heads_guess_the_same_among_the_kept_tokens(
    heads: Path, text: Path, tiny_gguf: str, tmp_path: Path
) -> None:
    output = tmp_path / "sliced.safetensors"
    done = slice_heads(heads, tiny_gguf, output, tokens=KEPT, texts=[text])
    assert done == Sliced(HEADS, KEPT, VOCAB, 1.0)
    sliced = load(output, tiny_gguf)
    assert (sliced.heads, sliced.layers) == (HEADS, 1)
    check_restricted(heads, output, tiny_gguf)
    with safe_open(output, framework="pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16, torch.int32}  # noqa: SIM118
        assert file.get_slice("lm_heads.4.weight").get_shape() == [KEPT, WIDTH]


@pytest.mark.parametrize("suffix", ["pt", "bin", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_heads_of_any_number_format_become_bf16(
    dtype: torch.dtype, suffix: str, text: Path, tiny_gguf: str, tmp_path: Path
) -> None:
    full, source = full_heads(dtype=dtype), tmp_path / f"heads.{suffix}"
    save_file(full, source) if suffix == "safetensors" else torch.save(full, source)
    slice_heads(source, tiny_gguf, tmp_path / "out.safetensors", tokens=KEPT, texts=[text])
    with safe_open(tmp_path / "out.safetensors", framework="pt") as file:
        kept = file.get_tensor("token_map").long()
        for head in range(HEADS):
            expected = full[f"{head}.1.weight"][kept].bfloat16()
            assert torch.equal(file.get_tensor(f"lm_heads.{head}.weight"), expected)
            layer = full[f"{head}.0.linear.weight"].bfloat16()
            assert torch.equal(file.get_tensor(f"blocks.{head}.layers.0.weight"), layer)


@pytest.mark.parametrize("sees_path", [False, True])
def test_two_layers_and_no_lm_head_of_their_own(
    sees_path: bool, text: Path, tiny_gguf: str, tmp_path: Path
) -> None:
    torch.save(full_heads(own_lm_head=False, layers=2, sees_path=sees_path), tmp_path / "heads.pt")
    slice_heads(tmp_path / "heads.pt", tiny_gguf, tmp_path / "out.safetensors", tokens=KEPT, texts=[text])
    sliced = load(tmp_path / "out.safetensors", tiny_gguf)
    assert sliced.layers == 2
    check_restricted(tmp_path / "heads.pt", tmp_path / "out.safetensors", tiny_gguf)


def test_a_logit_scale_is_taken_over(heads: Path, text: Path, tiny_gguf: str, tmp_path: Path) -> None:
    (heads / "config.json").write_text(json.dumps({"logit_scale": 0.25}))
    slice_heads(heads, tiny_gguf, tmp_path / "out.safetensors", tokens=KEPT, texts=[text])
    check_restricted(heads, tmp_path / "out.safetensors", tiny_gguf)


def test_the_file_says_where_it_comes_from(heads: Path, text: Path, tiny_gguf: str, tmp_path: Path) -> None:
    output = tmp_path / "sliced.safetensors"
    slice_heads(heads, tiny_gguf, output, tokens=20, texts=[text], source="somebody/heads")
    said = load(output, tiny_gguf).metadata
    assert said["source"] == "somebody/heads"
    assert json.loads(said["source_sha256"]) == {
        "medusa_lm_head.pt": sha256(heads / "medusa_lm_head.pt"),
    }
    assert said["base_model"] == "tiny.gguf"
    assert said[FINGERPRINT] == fingerprint(tiny_gguf)
    counted = json.loads(said["draft_vocabulary"])
    tokens = Model(tiny_gguf).tokenize(text.read_text(), add_bos=False, special=False)
    assert counted["text"] == ["text.txt"]
    assert counted["counted_tokens"] == len(tokens)
    assert counted["seen"] == len(set(tokens.tolist())) > counted["kept"] == 20
    assert 0.5 < counted["coverage"] < 1


@pytest.mark.slow
def test_composed_prompts_are_counted_where_no_text_is_given(
    heads: Path, tiny_gguf: str, tmp_path: Path
) -> None:
    output = tmp_path / "sliced.safetensors"
    done = slice_heads(heads, tiny_gguf, output, tokens=KEPT)
    assert 0.8 < done.coverage < 1
    counted = json.loads(load(output, tiny_gguf).metadata["draft_vocabulary"])
    assert counted["text"] == "composed prompts"
    assert counted["counted_tokens"] > 100_000


# Which tokens stay


def test_ends_lead_then_counts_then_the_vocabularys_own_order(tiny_gguf: str) -> None:
    model = Model(tiny_gguf, gpu_layers=0, vocabulary_only=True)
    counts = count_tokens(model, ["aab", "ab"])
    order = ranked(model, counts)
    assert sorted(order.tolist()) == list(range(VOCAB))
    assert int(order[0]) == 2, "the token that ends an answer"
    seen = np.flatnonzero(counts).tolist()
    assert order[1 : 1 + len(seen)].tolist() == sorted(seen, key=lambda token: (-counts[token], token))
    unseen = order[1 + len(seen) :].tolist()
    texts = [model.is_text(token) for token in unseen]
    assert texts == sorted(texts, reverse=True), "unseen ones that are no text come last"
    pieces = [token for token, text in zip(unseen, texts, strict=True) if text]
    assert pieces == sorted(pieces)
    assert 0 < texts.count(False) < len(texts)


def test_control_tokens_and_parts_of_characters_are_no_text() -> None:
    model = Model(default_model_path(), gpu_layers=0, vocabulary_only=True)
    assert model.vocab_size == 49152
    [end] = model.tokenize("<|im_end|>", add_bos=False, special=True).tolist()
    assert not model.is_text(end)
    word, *_ = model.tokenize(" house", add_bos=False, special=False).tolist()
    assert model.is_text(word)
    parts = model.tokenize("\U0001f9ff", add_bos=False, special=False).tolist()
    assert not all(map(model.is_text, parts))


def test_text_is_counted_whole_whatever_its_blocks(tiny_gguf: str, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"a line of text\r\n" * (BLOCK // 8))
    model = Model(tiny_gguf, gpu_layers=0, vocabulary_only=True)
    blocks = list(read_texts([path]))
    assert len(blocks) > 1
    assert "".join(blocks).encode() == path.read_bytes()
    assert count_tokens(model, blocks).sum() > len(blocks)


def test_of_json_lines_the_prompts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one\\ntwo"}\n{"text": "three"}\n')
    assert list(read_texts([path])) == ["one\ntwo", "three"]


# Refusals


def refused(error: type[Exception], reason: str, *arguments: object, **options: object) -> None:
    with pytest.raises(error, match=reason) as caught:
        slice_heads(*arguments, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_heads_that_are_sliced_already(heads: Path, text: Path, tiny_gguf: str, tmp_path: Path) -> None:
    once = tmp_path / "once.safetensors"
    slice_heads(heads, tiny_gguf, once, tokens=KEPT, texts=[text])
    twice = tmp_path / "twice.safetensors"
    refused(
        HeadsLoadError,
        rf"once\.safetensors: cut to {KEPT} of {VOCAB} tokens already: slice the full heads",
        *(once, tiny_gguf, twice),
        tokens=KEPT,
    )
    (heads / "config.json").write_text(json.dumps({"truncated_vocab_size": 50}))
    refused(HeadsLoadError, f"cut to 50 of {VOCAB}", heads, tiny_gguf, twice, tokens=KEPT)
    assert not twice.exists()


@pytest.mark.parametrize("tokens", [7, VOCAB + 1])
def test_more_tokens_than_there_are_or_too_few(
    heads: Path, tiny_gguf: str, tmp_path: Path, tokens: int
) -> None:
    reason = f"a draft vocabulary of {tokens} tokens is not possible: the model has {VOCAB}, and 8 is the min"
    refused(TrainingError, reason, heads, tiny_gguf, tmp_path / "out.safetensors", tokens=tokens)


def test_a_target_that_cannot_be_written(heads: Path, tiny_gguf: str, tmp_path: Path) -> None:
    target = tmp_path / "no" / "out.safetensors"
    refused(TrainingError, f"cannot write {target}: No such file or directory", heads, tiny_gguf, target)


def test_heads_of_another_model(text: Path, tiny_gguf: str, tmp_path: Path) -> None:
    output = tmp_path / "out.safetensors"
    torch.save(full_heads(vocab=VOCAB + 32), tmp_path / "wide.pt")
    refused(
        HeadsLoadError,
        rf"wide\.pt: 0\.1\.weight is for a vocabulary of {VOCAB + 32} tokens, and the model has {VOCAB}",
        *(tmp_path / "wide.pt", tiny_gguf, output),
        texts=[text],
        tokens=KEPT,
    )
    torch.save(full_heads(), tmp_path / "heads.pt")
    refused(
        HeadsLoadError,
        f"for models of hidden size {WIDTH}, and this one has 576",
        *(tmp_path / "heads.pt", default_model_path(), output),
        tokens=KEPT,
    )
    assert not output.exists()


def test_a_logit_scale_that_no_lm_head_can_take(tiny_gguf: str, tmp_path: Path) -> None:
    torch.save(full_heads(own_lm_head=False), tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps({"logit_scale": 0.5}))
    refused(HeadsLoadError, "logit_scale", tmp_path, tiny_gguf, tmp_path / "out.safetensors", tokens=KEPT)


def test_no_heads_no_model_no_text(heads: Path, tiny_gguf: str, tmp_path: Path) -> None:
    output = tmp_path / "out.safetensors"
    missing = tmp_path / "missing"
    refused(HeadsLoadError, "missing: no such file or folder", missing, tiny_gguf, output, tokens=KEPT)
    refused(ModelLoadError, "missing: no such file", heads, str(missing), output)
    some = {"tokens": KEPT}
    refused(
        PromptsError, "missing cannot be read: No such", heads, tiny_gguf, output, texts=[missing], **some
    )
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    latin = [tmp_path / "latin.txt"]
    refused(
        PromptsError, r"latin\.txt cannot be read: 'utf-8'", heads, tiny_gguf, output, texts=latin, **some
    )
    (tmp_path / "empty.txt").touch()
    empty = [tmp_path / "empty.txt"]
    refused(PromptsError, "the texts hold no token", heads, tiny_gguf, output, texts=empty, **some)
    assert not output.exists()
