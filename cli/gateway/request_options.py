"""Options of a request that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from tasks.records.job import Acceptance, Decoding

TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy. (default: 0)")]
TopPOption = Annotated[float | None, typer.Option(help="Nucleus sampling. (default: 1)")]
SeedOption = Annotated[int | None, typer.Option(help="Same seed, same text. (default: random)")]
StopOption = Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")]
DecodingOption = Annotated[
    Decoding | None,
    typer.Option(help="Draft tokens: auto where it pays, medusa always, normal never. (default: auto)"),
]
AcceptanceOption = Annotated[
    Acceptance | None,
    typer.Option(help="Of drafted tokens; typical is lossy: it changes the text. (default: exact)"),
]
