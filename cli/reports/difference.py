"""Where two answers to the same job part, and how near the choice was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.gateway.job_run import JobFailed, run_job
from medusaq.errors import GatewayError
from tasks.records.job import Decoding

TOP = 20  # alternatives at each token: the most that a job may ask for


@dataclass(frozen=True, slots=True)
class Difference:
    """number: of the first token that differs, from 1. choice: the two tokens, and the gap between them."""

    number: int
    choice: str

    def __str__(self) -> str:
        return f"differs from token {self.number} on: {self.choice}"


def find_difference(
    url: str, body: Mapping[str, Any], plain: Sequence[int], other: Sequence[int]
) -> Difference:
    """plain, other: token ids of two answers to the body, plain those of plain decoding, end tokens included.

    Decodes plainly once more, up to the difference, with log-probabilities: asked for in a run that is
    timed, they would slow it down. Raises CliError.
    """
    shorter = min(len(plain), len(other))
    index = next((i for i in range(shorter) if plain[i] != other[i]), shorter)
    if index == shorter:
        return Difference(index + 1, "one answer ended there")
    # Neither answer ended before the difference, so this one need not end at it.
    endless = {"ignore_eos": True, "stop": [], "stop_token_ids": [], "max_tokens": index + 1}
    again = {**body, **endless, "decoding": Decoding.NORMAL, "logprobs": TOP}
    try:
        tokens = run_job(url, again, may_be_cut=True)["logprobs"]
    except (GatewayError, JobFailed) as failure:
        return Difference(index + 1, f"log-probabilities unknown: {failure}")
    if len(tokens) <= index or [token["token_id"] for token in tokens[:index]] != [*plain[:index]]:
        return Difference(index + 1, "log-probabilities unknown: a second plain answer was another one")
    return Difference(index + 1, _choice(tokens[index], plain[index], other[index]))


def _choice(token: Mapping[str, Any], plain: int, other: int) -> str:
    """token: what plain decoding chose where the answers part, with its alternatives."""
    known = {one["token_id"]: one for one in (*token["top"], token)}
    words = f"{_word(known.get(other), other)} instead of {_word(known.get(plain), plain)}"
    if plain not in known or other not in known:
        return f"{words}, not both among the {TOP} likeliest tokens"
    gap = abs(known[plain]["logprob"] - known[other]["logprob"])
    return f"{words}, log-probabilities {gap:.2g} apart"


def _word(token: Mapping[str, Any] | None, token_id: int) -> str:
    return f"token id {token_id}" if token is None else json.dumps(token["token"], ensure_ascii=False)
