"""Hyperparameters and options of training, with their validation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.medusa.calibration import RANKS
from training.base.errors import TrainingError


class Kind(StrEnum):
    """What heads read beside the hidden state: hydra, the tokens before theirs; medusa, nothing."""

    HYDRA = "hydra"
    MEDUSA = "medusa"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters. soft: weight of the loss against the model's own probabilities (soft targets).

    learning_rate: the peak for Muon (K. Jordan 2024). patience: evaluations without a better score before
    early stopping. warm_up: share of all steps. rows: tokens per step.
    """

    kind: Kind = Kind.HYDRA
    heads: int = 4
    layers: int = 2
    vocabulary: int = 6144
    epochs: int = 4
    rows: int = 2048
    learning_rate: float = 0.05
    warm_up: float = 0.1
    weight_decay: float = 0.0
    soft: float = 0.0
    patience: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            ("heads", 1 <= self.heads <= 16, "must be between 1 and 16"),
            ("layers", 1 <= self.layers <= 8, "must be between 1 and 8"),
            ("vocabulary", self.vocabulary >= RANKS, f"must be at least {RANKS}"),
            ("epochs", self.epochs >= 1, "must be at least 1"),
            ("rows", self.rows >= 1, "must be at least 1"),
            ("learning_rate", 0 < self.learning_rate < 1, "must be above 0 and below 1"),
            ("warm_up", 0 <= self.warm_up < 1, "must be at least 0 and below 1"),
            ("soft", 0 <= self.soft <= 1, "must be between 0 and 1"),
            ("patience", self.patience >= 1, "must be at least 1"),
        )
        for name, holds, rule in checks:
            if not holds:
                raise TrainingError(f"{name} {rule}")


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """model: the GGUF that the heads are for. folders: collections. work: folder of checkpoints, kept.

    device: a torch device, or "auto". threads: of torch; 0 is every core. begin: a heads file whose weights
    training begins with, instead of the identity.
    """

    model: str
    folders: tuple[Path, ...]
    output: Path
    work: Path
    recipe: Recipe = Recipe()
    device: str = "auto"
    threads: int = 0
    begin: Path | None = None
