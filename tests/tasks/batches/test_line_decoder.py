"""Any bytes are one verdict: a line to send, or a refusal with a code."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from common.json_text import compact
from tasks.batches.line_decoder import InvalidLine, LineDecoder, kind_of
from tasks.records.packed_line import Line, unpacked
from tasks.schema.job_request import MAX_VALUES, has_too_many_values
from tasks.schema.json_lines import physical_lines
from tasks.schema.openai_requests import CHAT, COMPLETIONS, ENDPOINTS, JOBS, MAX_CUSTOM_ID, RESPONSES

MOST = 4096
MESSAGES = [{"role": "user", "content": "Hello"}]


def line(custom_id: object = "a", url: str = CHAT, body: object = None, **more: object) -> bytes:
    chosen = {"model": "m", "messages": MESSAGES} if body is None else body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": chosen, **more}).encode()


def decoder(endpoint: str = CHAT) -> LineDecoder:
    return LineDecoder(endpoint, MOST, default_max_tokens=64)


def test_a_good_line_becomes_the_request_of_a_job() -> None:
    got = decoder().decode(
        7, line(body={"model": "m", "messages": MESSAGES, "max_completion_tokens": 5, "seed": 3})
    )
    assert isinstance(got, Line)
    assert (got.number, got.custom_id, got.model) == (7, "a", "m")
    assert json.loads(got.request) == {"messages": MESSAGES, "max_tokens": 5, "seed": 3}


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, JOBS])
def test_a_job_as_it_stands_is_a_line_of_its_number(endpoint: str) -> None:
    got = decoder(endpoint).decode(7, b'{"prompt": "x", "model": "m", "max_tokens": 5, "seed": 3}')
    assert isinstance(got, Line)
    assert (got.number, got.custom_id, got.model) == (7, "line-7", "m")
    assert json.loads(got.request) == {"prompt": "x", "max_tokens": 5, "seed": 3}
    named = decoder(endpoint).decode(7, b'{"prompt": "x", "custom_id": "mine"}')
    assert isinstance(named, Line)
    assert named.custom_id == "mine"


def test_a_job_as_it_stands_that_is_wrong() -> None:
    reader = decoder()
    for number, (raw, code, field) in enumerate(
        [
            (b'{"prompt": "x", "max_tokens": 0}', "invalid_value", "max_tokens"),
            (b'{"prompt": "x", "best_off": 1}', "unknown_field", "best_off"),
            (b'{"prompt": "x", "priority": "bulk"}', "invalid_value", "priority"),
            (b'{"custom_id": "line-1", "prompt": "x"}', "duplicate_custom_id", "custom_id"),
        ],
        1,
    ):
        got = reader.decode(number, raw)
        assert isinstance(got, InvalidLine)
        assert (got.problem.code, got.problem.field) == (code, field)
    elsewhere = decoder(RESPONSES).decode(1, b'{"prompt": "x"}')
    assert isinstance(elsewhere, InvalidLine)
    assert elsewhere.problem.code == "url_mismatch", "its requests are others"


def test_one_stop_string_is_a_list_of_one() -> None:
    got = decoder().decode(1, line(body={"messages": MESSAGES, "stop": "END"}))
    assert isinstance(got, Line)
    assert json.loads(got.request)["stop"] == ["END"]


def test_what_the_line_leaves_open_is_fixed_once() -> None:
    got = decoder().decode(1, line())
    assert isinstance(got, Line)
    request = json.loads(got.request)
    assert request["max_tokens"] == 64
    assert request["seed"] >= 0, "a second attempt gives the text of the first"


@pytest.mark.parametrize("body", [{}, {"max_tokens": 5}, {"max_completion_tokens": 500}])
def test_the_max_tokens_of_a_retry_are_those_of_all_its_lines(body: dict[str, int]) -> None:
    retry = LineDecoder(CHAT, MOST, default_max_tokens=64, max_tokens=99)
    got = retry.decode(1, line(body={"messages": MESSAGES, **body}))
    assert isinstance(got, Line)
    assert (json.loads(got.request)["max_tokens"], got.max_tokens) == (99, 99)


@pytest.mark.parametrize(
    ("raw", "code", "field"),
    [
        (None, "line_too_long", None),
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b'{"a": NaN}', "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b"[" * 20_000, "invalid_json_line", None),
        (b"[" + b"1," * MAX_VALUES + b"1]", "too_many_values", None),
        (line(None), "invalid_custom_id", "custom_id"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line(5), "invalid_custom_id", "custom_id"),
        (line("x" * (MAX_CUSTOM_ID + 1)), "invalid_custom_id", "custom_id"),
        (b'{"custom_id": "\\ud800", "method": "POST"}', "invalid_json_line", "custom_id"),
        (line(url=COMPLETIONS, body={"prompt": "x"}), "url_mismatch", "url"),
        (line(url="/v1/embeddings"), "url_mismatch", "url"),
        (line(body={"model": "m", "messages": MESSAGES, "stream": True}), "invalid_value", "body.stream"),
        (line(body={"model": "m", "messages": MESSAGES, "n": 2}), "invalid_value", "body.n"),
        (line(body={"model": "m", "messages": MESSAGES, "best_off": 2}), "unknown_field", "body.best_off"),
        (line(body={"model": "m", "messages": []}), "invalid_value", "body.messages"),
        (
            line(body={"model": "m", "messages": MESSAGES, "max_tokens": -1}),
            "invalid_value",
            "body.max_tokens",
        ),
        (line(body="text"), "invalid_value", "body"),
        (line(body={"model": "m"}), "invalid_value", "body.messages"),
        (b'{"custom_id": "b", "method": "POST", "url": "/v1/chat/completions"}', "invalid_value", "body"),
        (line(extra=1), "unknown_field", "extra"),
        (line()[:-1] + b', "\\ud800": 1}', "invalid_json_line", None),
        (line(body={"messages": MESSAGES, "\ud800": 1}), "invalid_json_line", None),
        (
            line(body={"messages": [{"role": "user", "content": [{"type": "\ud800"}]}]}),
            "invalid_json_line",
            None,
        ),
        (line(body={"messages": MESSAGES, "user": "\ud800"}), "invalid_json_line", None),
        (
            line(body={"messages": MESSAGES, "max_completion_tokens": 0}),
            "invalid_value",
            "body.max_completion_tokens",
        ),
    ],
)
def test_a_bad_line_is_refused_with_its_code(raw: bytes | None, code: str, field: str | None) -> None:
    got = decoder().decode(3, raw)
    assert isinstance(got, InvalidLine)
    assert (got.number, got.problem.code, got.problem.field) == (3, code, field)


@pytest.mark.parametrize("text", ["1, ", '"[{,', "\\,"])
def test_what_a_text_holds_are_no_values(text: str) -> None:
    raw = line(body={"messages": [{"role": "user", "content": text * MAX_VALUES}]})
    assert isinstance(LineDecoder(CHAT, len(raw), 64).decode(1, raw), Line)


@pytest.mark.parametrize(
    "raw", [b'"' * 1_000_000, b'\\"' * 1_000_000, b'"' + b'\\",' * 1_000_000, b'"\\' * 1_000_000 + b"\\"]
)
def test_values_are_counted_in_linear_time(raw: bytes) -> None:
    """A quadratic count would take hours."""
    has_too_many_values(raw + b",")
    has_too_many_values(b"," * (MAX_VALUES + 1) + raw)


@pytest.mark.parametrize("length", [1, MAX_CUSTOM_ID])
def test_the_lengths_that_an_id_may_have(length: int) -> None:
    got = decoder().decode(1, line("x" * length))
    assert isinstance(got, Line)
    assert len(got.custom_id) == length


def test_what_is_nested_too_deeply_is_called_so() -> None:
    deep: object = []
    for _ in range(300):
        deep = [deep]
    got = decoder().decode(1, line(body={"messages": MESSAGES, "metadata": deep}))
    assert isinstance(got, InvalidLine)
    assert str(got.problem) == "body: nested too deeply"


def test_an_id_names_one_line() -> None:
    d = decoder()
    assert isinstance(d.decode(1, line("same")), Line)
    got = d.decode(2, line("same"))
    assert isinstance(got, InvalidLine)
    assert got.problem.code == "duplicate_custom_id"
    assert "line 1" in got.problem.message
    assert isinstance(d.decode(3, line("other")), Line)


def test_a_batch_is_for_one_model() -> None:
    d = decoder()
    d.decode(1, line("a", body={"model": "one", "messages": MESSAGES}))
    got = d.decode(2, line("b", body={"model": "two", "messages": MESSAGES}))
    assert isinstance(got, InvalidLine)
    assert got.problem.code == "model_mismatch"
    assert d.model == "one"
    assert isinstance(d.decode(3, line("c", body={"messages": MESSAGES})), Line), "it names none"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Hello", "raw": True, "stop_token_ids": [2], "seed": 3, "max_tokens": 5},
        {"messages": MESSAGES, "decoding": "medusa", "logprobs": 2, "seed": 3, "max_tokens": 5},
    ],
)
def test_a_line_of_ours_is_a_job_as_it_stands(body: dict[str, Any]) -> None:
    got = decoder(JOBS).decode(1, line(url=JOBS, body={**body, "model": "m", "top_p": None}))
    assert isinstance(got, Line)
    assert (got.model, json.loads(got.request)) == ("m", body)


def test_what_a_line_of_ours_leaves_open_is_fixed_too() -> None:
    got = decoder(JOBS).decode(1, line(url=JOBS, body={"prompt": "x", "seed": None, "max_tokens": None}))
    assert isinstance(got, Line)
    request = json.loads(got.request)
    assert (request["max_tokens"], request["seed"] >= 0) == (64, True)


def test_a_call_without_content_is_no_trouble() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    got = decoder(JOBS).decode(1, line(url=JOBS, body={"messages": [message]}))
    assert isinstance(got, Line)
    assert got.prefix is None


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (
            {"prompt": "x", "priority": "interactive"},
            "invalid_value",
            "body.priority: a batch has one for all its lines",
        ),
        (
            {"prompt": "x", "deadline": 4e9},
            "invalid_value",
            "body.deadline: a batch has one for all its lines",
        ),
        ({"prompt": "x", "n": 1}, "unknown_field", "body.n: there is no such field"),
        ({"prompt": "x", "stream": False}, "unknown_field", "body.stream: there is no such field"),
        (
            {"prompt": "x", "messages": MESSAGES},
            "invalid_value",
            "body.prompt: give exactly one of prompt and messages",
        ),
    ],
)
def test_a_line_of_ours_takes_no_other_field(body: dict[str, Any], code: str, message: str) -> None:
    got = decoder(JOBS).decode(1, line(url=JOBS, body=body))
    assert isinstance(got, InvalidLine)
    assert (got.problem.code, str(got.problem)) == (code, message)


def test_a_deadline_of_its_own_is_refused_in_a_chat_too() -> None:
    got = decoder().decode(1, line(body={"messages": MESSAGES, "deadline": 4e9}))
    assert isinstance(got, InvalidLine)
    assert got.problem.field == "body.deadline"


def test_lines_of_ours_may_name_several_models() -> None:
    d = decoder(JOBS)
    got = [d.decode(n, line(name, JOBS, {"prompt": "x", "model": name})) for n, name in enumerate("ab")]
    assert [g.model for g in got if isinstance(g, Line)] == ["a", "b"]


@given(st.binary(max_size=200))
def test_any_bytes_are_one_verdict(raw: bytes) -> None:
    _one_verdict(CHAT, raw)


def _one_verdict(endpoint: str, raw: bytes) -> None:
    """And one that can be written into a file."""
    got = decoder(endpoint).decode(1, raw)
    assert isinstance(got, Line | InvalidLine)
    if isinstance(got, Line):
        assert unpacked(got.packed(0)) == replace(got, prefix=None)
    else:
        compact([got.custom_id, str(got.problem)]).encode()


texts = st.text(st.characters(), max_size=8)  # halves of surrogate pairs too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
NAMES = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "temperature",
    "stop",
    "seed",
    "n",
    "tools",
    "logit_bias",
    "priority",
    "deadline",
    "raw",
]
bodies = json_values | st.dictionaries(st.sampled_from(NAMES), json_values, max_size=5)
objects = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": json_values | st.just("a"),
        "method": json_values | st.just("POST"),
        "url": json_values | st.sampled_from(ENDPOINTS),
        "body": bodies,
    },
)


@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(objects, st.sampled_from(ENDPOINTS))
def test_any_object_is_one_verdict(value: dict[str, Any], endpoint: str) -> None:
    _one_verdict(endpoint, json.dumps(value).encode())


@given(st.lists(st.binary(max_size=40)), st.sampled_from([b"\n", b"\r\n"]))
def test_lines_keep_their_numbers(parts: list[bytes], end: bytes) -> None:
    parts = [part.replace(b"\n", b" ") for part in parts]
    found = dict(physical_lines(io.BytesIO(end.join(parts)), 16))
    for number, part in enumerate(parts, 1):
        stripped = (part.removeprefix(b"\xef\xbb\xbf") if number == 1 else part).strip()
        if number in found and found[number] is not None:
            assert found[number].strip() == stripped
        elif number not in found:
            assert not stripped
    assert all(
        found[number] is not None
        for number, part in enumerate(parts, 1)
        if number in found and len(part) < 13
    )


def test_a_mark_and_blank_lines_and_carriage_returns_are_no_trouble() -> None:
    text = b"\xef\xbb\xbf" + line("a") + b"\r\n\r\n  \n" + line("b")
    d = decoder()
    lines = [
        (number, raw.strip()) for number, raw in physical_lines(io.BytesIO(text), MOST) if raw is not None
    ]
    got = [d.decode(number, raw) for number, raw in lines if raw]
    assert [(g.number, g.custom_id) for g in got] == [(1, "a"), (4, "b")]


def test_a_line_that_is_too_long_costs_no_memory_and_no_other_line() -> None:
    text = b"x" * 10_000 + b"\n" + line("b") + b"\n"
    [(one, too_long), (two, kept)] = physical_lines(io.BytesIO(text), 4096)
    assert (one, too_long, two, kept) == (1, None, 2, line("b") + b"\n")


def test_archives_are_known_by_their_first_bytes() -> None:
    assert kind_of(b"PK\x03\x04....") == "a zip archive"
    assert kind_of(b'{"custom') is None


def test_lines_with_one_long_beginning_share_it() -> None:
    d = decoder()
    shared = "Answer in one word. " * 40
    made = []
    for i, content in enumerate([shared + "one", shared + "two", "short"]):
        got = d.decode(i + 1, line(str(i), body={"messages": [{"role": "system", "content": content}]}))
        assert isinstance(got, Line)
        made.append(got.prefix)
    assert made[0] == made[1] is not None
    assert made[2] is None
