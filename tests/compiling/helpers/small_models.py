"""Small random checkpoints in the folder layouts of the Hugging Face hub, made with transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from sentencepiece import SentencePieceTrainer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast
from transformers import models as architectures

from engine.llama.model import default_model_path

ROOT = Path(__file__).parents[3]
WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 64, 3, 4, 2, 128, 512
VOCAB, PADDED_VOCAB = 640, 704  # pieces of the tokenizer; rows of the model, which like to be a round number
TOKENIZED = ("compiling/measure/passages.txt", "examples/prompts.jsonl")  # another text is another model
SLIDING_WINDOW = 16  # shorter than what the tests write, so that it shows
VICUNA_SHARDS = 2

Weights = dict[str, torch.Tensor]


def write_checkpoint(
    folder: Path, kind: str, *, dtype: torch.dtype = torch.float32, seed: int = 7, shards: int = 2
) -> Path:
    """A checkpoint of this kind of model (one of KINDS) with its tokenizer, as sharded safetensors."""
    folder.mkdir(parents=True)
    model = _random_model(KINDS[kind](), dtype, seed)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    _write_shards(folder, _own_weights(model), shards, "model", ".safetensors", _save_safetensors)
    _write_tokenizer(folder, kind)
    return folder


def write_vicuna(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float16,
    seed: int = 7,
    width: int = WIDTH,
    layers: int = LAYERS,
) -> Path:
    """A llama with SentencePiece in exactly the files that lmsys/vicuna-7b-v1.3 has, README aside."""
    folder.mkdir(parents=True)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    model = _random_model(_llama(num_key_value_heads=HEADS, **sizes), dtype, seed)
    config = model.config.to_diff_dict() | {"transformers_version": "4.28.1", "use_cache": True}
    config["torch_dtype"] = str(config.pop("dtype", dtype)).removeprefix("torch.")
    _write_json(folder / "config.json", config)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})
    weights = _own_weights(model)
    for layer in range(layers):  # what transformers wrote until 4.31
        frequencies = 10000.0 ** (-torch.arange(0, width // HEADS, 2) / (width // HEADS))
        weights[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies
    _write_shards(folder, weights, VICUNA_SHARDS, "pytorch_model", ".bin", torch.save)

    def added(content: str) -> dict[str, Any]:
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        return {"__type": "AddedToken", "content": content, **flags}

    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "pad_token": None,
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
    }
    tokens = {name: added(content) for name, content in named.items()}
    _write_json(folder / "tokenizer_config.json", settings | tokens)
    plain = {name: {k: v for k, v in token.items() if k != "__type"} for name, token in tokens.items()}
    _write_json(folder / "special_tokens_map.json", plain | {"pad_token": "<unk>"})
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    return folder


def _random_model(config: PretrainedConfig, dtype: torch.dtype, seed: int) -> Any:
    """Weights spread so that logits differ by several units and every part of the network tells in them."""
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    # A tied embedding must not outweigh the layers, or each token would only be followed by itself. Beside it
    # the MLPs weigh less: llama.cpp reads GELU from 16-bit numbers, whose error would hide all others.
    embedding = 0.25 * WIDTH**-0.5 if config.tie_word_embeddings else 1.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight += 0.1 * noise - 0.7 * ("post_feedforward_layernorm" in name)
            elif "embed_tokens" in name:
                weight.copy_(noise * embedding)
            else:
                gain = 0.1 if "down_proj" in name and config.tie_word_embeddings else 2.0
                weight.copy_(noise * gain / weight.shape[1] ** 0.5)
    model.config.architectures = [type(model).__name__]
    return model.to(dtype).eval()


def _own_weights(model: Any) -> Weights:
    """Without those that are only another name of the embedding."""
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    return weights


def _write_shards(
    folder: Path,
    weights: Weights,
    count: int,
    stem: str,
    suffix: str,
    save: Callable[[Weights, Path], None],
) -> None:
    names = list(weights)
    if count == 1:
        save(weights, folder / f"{stem}{suffix}")
        return
    places = {}
    for shard in range(count):
        file = f"{stem}-{shard + 1:05}-of-{count:05}{suffix}"
        part = names[shard * len(names) // count : (shard + 1) * len(names) // count]
        save({name: weights[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    total = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    _write_json(folder / f"{stem}{suffix}.index.json", index)


def _save_safetensors(weights: Weights, path: Path) -> None:
    save_file(weights, path, metadata={"format": "pt"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


# Tokenizers


def _write_tokenizer(folder: Path, kind: str) -> None:
    if kind == "phi":
        smollm_tokenizer().save_pretrained(folder)
        return
    gemma = kind.startswith("gemma")
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(gemma=gemma))
    bos, eos = ("<bos>", "<eos>") if gemma else ("<s>", "</s>")
    named = {"bos_token": bos, "eos_token": eos, "unk_token": "<unk>"}
    settings = {
        "add_bos_token": kind not in ("qwen2", "qwen3"),
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "legacy": False,
        "tokenizer_class": "GemmaTokenizer" if gemma else "LlamaTokenizer",
    }
    if kind == "phi3":  # its end is an added token, which llama.cpp looks for in models of this name
        named["eos_token"] = "<|endoftext|>"
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        settings["added_tokens_decoder"] = {str(VOCAB): {"content": named["eos_token"], **flags}}
    _write_json(folder / "tokenizer_config.json", settings | named)
    _write_json(folder / "special_tokens_map.json", named)


@cache
def sentencepiece_model(*, gemma: bool = False) -> bytes:
    """The file tokenizer.model: merges learned from our own pages, bytes for what they do not know."""
    ends = {"bos_piece": "<bos>", "eos_piece": "<eos>", "pad_piece": "<pad>"} if gemma else {}
    ids = (
        {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
        if gemma
        else {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    )
    pages = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in TOKENIZED)
    written = BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(pages.splitlines()),
        model_writer=written,
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=not gemma,
        minloglevel=2,
        num_threads=1,
        **ids,
        **ends,
    )
    return written.getvalue()


@cache
def smollm_tokenizer() -> PreTrainedTokenizerFast:
    """SmolLM2's own byte-level BPE, rebuilt from the GGUF of the default model."""
    fields = GGUFReader(default_model_path()).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **ends)


# Architectures


def _sizes(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": PADDED_VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    return sizes | changes


def _llama(**changes: Any) -> PretrainedConfig:
    return architectures.llama.LlamaConfig(**_sizes(tie_word_embeddings=False, **changes))


def _gemma(config: Any, **changes: Any) -> PretrainedConfig:
    ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "head_dim": 32}
    made: PretrainedConfig = config(**_sizes(**ends, **changes))
    return made


def _phi() -> PretrainedConfig:
    rows = len(smollm_tokenizer())
    sizes = _sizes(vocab_size=rows, num_key_value_heads=HEADS, intermediate_size=4 * WIDTH)
    return architectures.phi.PhiConfig(**sizes | {"bos_token_id": 0, "eos_token_id": 0})


KINDS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": _llama,
    "mistral": lambda: architectures.mistral.MistralConfig(**_sizes(sliding_window=None, head_dim=None)),
    "qwen2": lambda: architectures.qwen2.Qwen2Config(**_sizes()),
    "qwen3": lambda: architectures.qwen3.Qwen3Config(**_sizes(head_dim=32)),
    "gemma": lambda: _gemma(architectures.gemma.GemmaConfig),
    "gemma2": lambda: _gemma(
        architectures.gemma2.Gemma2Config, sliding_window=SLIDING_WINDOW, query_pre_attn_scalar=32
    ),
    "gemma3": lambda: _gemma(
        architectures.gemma3.Gemma3TextConfig, sliding_window=SLIDING_WINDOW, query_pre_attn_scalar=32
    ),
    "phi": _phi,
    "phi3": lambda: architectures.phi3.Phi3Config(**_sizes(sliding_window=None)),
}
