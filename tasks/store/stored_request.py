"""Requests as Redis has them: whole in a job's record, or, of jobs made together, what they share once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.json_text import compact
from tasks.records.job import Job
from tasks.store.scripts import answering

# Of a result, for each token, its id, and its log-probability and each of its alternatives.
TOKEN_BYTES, ID_BYTES, LOGPROB_BYTES = 8, 7, 80
MOST_RESULT_BYTES = 1_000_000  # that are reserved: max_tokens may be far over what any model allows
PAGE_BYTES = 4_194_304  # of what the jobs of a page share, written out in each


@dataclass(frozen=True, slots=True)
class Split:
    """JSON objects, which joined are the requests. prompt_keys: the prompt of each, "" for none."""

    common: str
    prompts: Sequence[str]
    own: Sequence[str]
    prompt_keys: Sequence[str]


def split(request: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> Split:
    """request, as each of the variants has it: with its own fields beside or instead of the request's."""
    if len(variants) == 1:
        return Split("", [], [compact({**request, **variants[0]})], [""])
    varied = {name for variant in variants for name in variant}
    prompt_keys: dict[str, str] = {}
    for variant in variants:
        if "prompt" in variant:
            prompt_keys.setdefault(variant["prompt"], str(len(prompt_keys) + 1))
    return Split(
        common=compact({name: value for name, value in request.items() if name not in varied}),
        prompts=[compact({"prompt": prompt}) for prompt in prompt_keys],
        own=[compact({name: value for name, value in v.items() if name != "prompt"}) for v in variants],
        prompt_keys=[prompt_keys.get(variant.get("prompt", ""), "") for variant in variants],
    )


def result_bytes(request: Mapping[str, Any]) -> int:
    """What to reserve for the result of a request, until it is there."""
    logprobs = request.get("logprobs")
    each = TOKEN_BYTES + ID_BYTES * bool(request.get("return_token_ids"))
    each += 0 if logprobs is None else LOGPROB_BYTES * (1 + logprobs)
    return int(min(each * request.get("max_tokens", 0), MOST_RESULT_BYTES))


def shared_parts(record: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the job of this hash shares with others: names of a group and of a field in it."""
    if not record.get("shared"):
        return []
    return [(record["shared"], name) for name in ("rest", record["prompt_part"]) if name]


def whole_jobs(client: Any, prefix: str, records: Sequence[Mapping[str, str]]) -> Iterator[Job]:
    """The jobs of these hashes, read by this client; without those that were deleted meanwhile."""
    wanted = list(dict.fromkeys(part for record in records for part in shared_parts(record)))
    found: dict[tuple[str, str], str | None] = {}
    if wanted:
        with answering(), client.pipeline(transaction=False) as pipe:
            for group, name in wanted:
                pipe.hget(f"{prefix}shared:{group}", name)
            found = dict(zip(wanted, pipe.execute(), strict=True))
    for record in records:
        parts = [found[part] for part in shared_parts(record)]
        stored = [part for part in parts if part is not None]
        if len(stored) == len(parts):
            yield Job.from_hash(record, joined(record["request"], *stored) if stored else None)


def joined(own: str, *shared: str) -> dict[str, Any]:
    """A request from the JSON objects in which it is stored, "" for none."""
    whole: dict[str, Any] = {}
    for part in filter(None, (*shared, own)):
        whole |= json.loads(part)
    return whole


def fitting(records: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """The first of these hashes, as many as share PAGE_BYTES written out, and one at least."""
    total = 0
    for index, record in enumerate(records):
        total += int(record.get("shared_bytes", 0))
        if index and total > PAGE_BYTES:
            return records[:index]
    return records
