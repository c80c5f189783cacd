"""Trains heads on collected tokens and hidden states of the model itself (self-distillation).

After Tianle Cai et al. 2024 (https://arxiv.org/abs/2401.10774), Medusa-1: the model is frozen. The answers
are the model's own, so they have the distribution that the heads must predict, and its later hidden states
give the probabilities of all tokens as soft targets.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from common.processor import usable_cores
from engine.host.file_digest import sha256
from engine.llama.model import Model
from engine.medusa.calibration import RANKS
from engine.medusa.loader import check_runtime, load_heads
from engine.medusa.model_rows import FINGERPRINT, ModelRows, fingerprint
from training.base.errors import TrainingError
from training.base.progress import say
from training.collection.dataset import Dataset, draft_vocabulary, held_out_share
from training.heads import heads_file
from training.heads.network import DraftHeads
from training.heads.recipe import Kind, TrainOptions
from training.heads.scores import Scores, calibrate, evaluate
from training.heads.training_loop import Run, find_device

SCORED_TOKENS = 250_000  # most held-out tokens to score: a minute for scores to a fifth of a percent


def check(options: TrainOptions) -> None:
    """Check early what would otherwise fail after hours of collecting.

    Raises ModelLoadError, HeadsLoadError or TrainingError.
    """
    heads_file.check_writable(options.output)
    check_runtime()
    find_device(options.device)
    model, recipe = Model(options.model, gpu_layers=0), options.recipe
    if not model.can_share_prefixes:
        raise TrainingError(
            f"{options.model}: a recurrent model cannot discard rejected drafts, so heads cannot be used"
        )
    fingerprint(options.model)
    ModelRows(options.model).lm_head(np.zeros(1, np.int32))
    if options.begin:
        embeddings = torch.zeros(1, model.width) if recipe.kind is Kind.HYDRA else None
        network = DraftHeads(recipe.heads, recipe.layers, model.width, embeddings)
        heads_file.read_into(network, options.begin)


def train(options: TrainOptions, console: Console) -> Scores:
    """Train, calibrate and write the heads; return their scores. Resumes an interrupted training.

    Raises TrainingError or HeadsLoadError.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    most_held_out = held_out_share(heads_file.metadata(options.begin)) if options.begin else 1.0
    data = Dataset(options.folders, most_held_out)
    digest = sha256(Path(options.model))
    for identity in data.identities:
        if identity.model_sha256 != digest:
            raise TrainingError(f"the collected states are not from the model {options.model}")
    vocabulary = draft_vocabulary(data.frequencies(), options.recipe.vocabulary)
    if len(vocabulary) < RANKS:
        raise TrainingError(
            f"the answers hold {len(vocabulary)} different tokens, and heads need {RANKS}: collect more"
        )
    model_rows = ModelRows(options.model)
    embeddings = model_rows.embeddings() if options.recipe.kind is Kind.HYDRA else None
    say(console, f"{data.train.tokens} tokens to train on, {data.held_out.tokens} held out")
    run = Run(options, data, vocabulary, model_rows.lm_head(vocabulary), embeddings)
    run.run(console)
    return _write(options, data, run, console)


def _write(options: TrainOptions, data: Dataset, run: Run, console: Console) -> Scores:
    """Write the heads, score and calibrate them in the engine, and write them again with the results."""
    metadata: dict[str, object] = {
        "format": "medusaq heads",
        "version": "2",
        "base_model": Path(options.model).name,
        "base_model_sha256": data.identities[0].model_sha256,
        FINGERPRINT: fingerprint(options.model),
        "width": str(data.width),
        "vocab_size": str(data.vocab_size),
        "recipe": asdict(run.recipe) | {"steps": run.step, "begin_sha256": run.begin},
        "data": data.describe(),
    }
    draft = options.work / "uncalibrated.safetensors"
    heads_file.write(draft, run.network, run.vocabulary, metadata)
    heads = load_heads(
        str(draft),
        width=data.width,
        vocab_size=data.vocab_size,
        model_rows=ModelRows(options.model),
        threads=options.threads or usable_cores(),
    )
    say(console, "scoring and calibrating on held-out answers")
    held_out = data.held_out.spread(SCORED_TOKENS)
    scores = evaluate(heads, held_out)
    metadata |= {"scores": scores.to_dict(), "calibration": calibrate(heads, held_out)}
    heads_file.write(options.output, run.network, run.vocabulary, metadata)
    draft.unlink()
    return scores
