"""Sizes of the models that a small one is widened to."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """heads: of attention, as wide as those of the small model, with as many to a key and value head."""

    width: int
    heads: int
    feed_forward: int
    layers: int

    def __str__(self) -> str:
        return f"{self.width}x{self.heads}x{self.feed_forward}x{self.layers}"


# Rows of all matrices are multiples of 256, which Q4_K needs: so heads of 64 are multiples of 4, and of 3,
# which the small model has to a key and value head.
PRESETS = {
    "1B": Shape(1536, 24, 4608, 34),  # deeper and narrower than most: the small model has 30 layers
    "3B": Shape(3072, 48, 8192, 30),  # Llama 3.2 3B, with 28 layers, has attention of the same widths
    "7B": Shape(4096, 60, 14336, 32),  # Mistral 7B, with 4 heads of 64 less
}


def name_of(shape: Shape) -> str:
    """What parse_shape() reads again."""
    return next((name for name, preset in PRESETS.items() if preset == shape), str(shape))


def parse_shape(text: str) -> Shape:
    """For argparse: the name of a preset, or WIDTHxHEADSxFEED_FORWARDxLAYERS."""
    if preset := PRESETS.get(text.upper()):
        return preset
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", text):
        names = ", ".join(PRESETS)
        raise argparse.ArgumentTypeError(f"{text}: must be {names} or WIDTHxHEADSxFEED_FORWARDxLAYERS")
    return Shape(*map(int, text.split("x")))
