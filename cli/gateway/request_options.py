"""Options of a request that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from tasks.records.job import MAX_TEMPERATURE, Acceptance, Decoding

TemperatureOption = Annotated[
    float | None, typer.Option(min=0, max=MAX_TEMPERATURE, help="0 is greedy, 2 the most. (default: 0)")
]
TopPOption = Annotated[float | None, typer.Option(help="Nucleus sampling. (default: 1)")]
SeedOption = Annotated[int | None, typer.Option(help="Seed for reproducible sampling. (default: random)")]
StopOption = Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")]
DecodingOption = Annotated[
    Decoding | None,
    typer.Option(help="Use of draft tokens: auto, medusa (at every step) or normal (never). (default: auto)"),
]
AcceptanceOption = Annotated[
    Acceptance | None,
    typer.Option(help="Acceptance of draft tokens; typical is lossy: it changes the text. (default: exact)"),
]
