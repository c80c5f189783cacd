"""Every way to write a file of requests, and every way to get it wrong."""

from __future__ import annotations

import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cli.base.errors import BadInput
from cli.prompts.formats import Format
from cli.prompts.prompt_reader import PromptLine, ReadOptions
from cli.prompts.record_reader import MAX_LINE_BYTES
from cli.prompts.source import Source
from tests.cli.helpers.running import Cli, write_jsonl


def read(data: bytes | str, suffix: str = "", **options: Any) -> list[PromptLine]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input{suffix}"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        source = Source(path, path.name, ReadOptions(**options))
        assert source.table is None
        return list(source.lines())


def jobs(data: bytes | str, suffix: str = "", **options: Any) -> list[dict[str, Any]]:
    lines = read(data, suffix, **options)
    assert [line.problems for line in lines] == [()] * len(lines)
    return [line.job for line in lines]


def problems(value: object, **options: Any) -> list[str]:
    """What is wrong with one line of JSON."""
    (line,) = read(json.dumps(value), ".jsonl", **options)
    assert line.problems
    assert line.job == {}
    return [str(problem) for problem in line.problems]


def batch(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return {**line, **fields}


MESSAGES = [{"role": "user", "content": "hello"}]


def test_text_is_one_prompt_a_line_without_the_blank_ones() -> None:
    lines = read("\ufeffone\r\n\r\n   \n two \nthree")
    assert [(line.index, line.number, line.custom_id) for line in lines] == [
        (0, 1, "line-1"),
        (1, 4, "line-4"),
        (2, 5, "line-5"),
    ]
    assert [line.job["prompt"] for line in lines] == ["one", " two ", "three"]


def test_the_format_is_told_by_name_or_first_character() -> None:
    assert jobs('{"prompt": "x"}') == [{"prompt": "x"}]
    assert jobs('{"prompt": "x"}', ".txt") == [{"prompt": '{"prompt": "x"}'}]
    assert jobs('{"prompt": "x"}', ".log") == [{"prompt": "x"}]
    assert jobs("a,b\n", ".log") == [{"prompt": "a,b"}]
    assert jobs("\ufeff \n{}\n", form=Format.TEXT) == [{"prompt": "{}"}]


def test_json_lines_take_every_job_field() -> None:
    line = {"prompt": "x", "max_tokens": 7, "seed": 3, "stop": ["\n"], "metadata": {"k": "v"}}
    line |= {"decoding": "medusa", "acceptance": "typical"}
    assert jobs(json.dumps({**line, "model": None})) == [line]
    assert jobs(json.dumps({"messages": MESSAGES, "custom_id": "q"})) == [{"messages": MESSAGES}]


def test_a_batch_line_of_ours_is_a_job_already() -> None:
    line = batch({"prompt": "x", "raw": True, "seed": None}, url="/v1/jobs")
    assert jobs(json.dumps(line)) == [{"prompt": "x", "raw": True}]


def test_chat_lines_of_a_batch_file() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "short", "name": None},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "max_completion_tokens": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "n": 1,
        "stream": False,
        "user": "someone",
        "top_k": 4,
    }
    assert jobs(json.dumps(batch(body))) == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "short"}, {"role": "user", "content": "ab"}],
            "max_tokens": 5,
            "logprobs": 2,
            "top_k": 4,
        }
    ]
    assert jobs(json.dumps(batch({"messages": MESSAGES, "logprobs": True}))) == [
        {"messages": MESSAGES, "logprobs": 0}
    ]
    assert jobs(json.dumps(batch({"messages": MESSAGES, "logprobs": False}))) == [{"messages": MESSAGES}]


def test_completion_lines_of_a_batch_file_are_raw() -> None:
    line = batch({"prompt": ["once"], "logprobs": 1, "echo": False}, url="/v1/completions")
    assert jobs(json.dumps(line)) == [{"prompt": "once", "logprobs": 1, "raw": True}]


def test_batch_and_plain_lines_may_be_mixed_unless_batch_is_asked_for() -> None:
    data = json.dumps(batch({"messages": MESSAGES})) + '\n{"prompt": "x"}\n'
    assert jobs(data) == [{"messages": MESSAGES}, {"prompt": "x"}]
    assert read(data, form=Format.BATCH)[1].problems


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x"', "not valid JSON: Expecting ',' delimiter (column 15)"),
        (b'{"prompt": "x', "not valid JSON: Unterminated string starting at (column 12)"),
        (b"nonsense", "not valid JSON: Expecting value (column 1)"),
        (b"[1]", "must be a JSON object, one on each line"),
        (b'{"prompt": "\xff"}', "not valid UTF-8 at byte 13 of the line"),
        (b'{"prompt": "x", "temperature": NaN}', "not valid JSON: NaN is not JSON"),
        (b'{"prompt": "\\ud800"}', "holds half of a surrogate pair, which UTF-8 cannot carry"),
        (b'{"\\ud800": 1}', "holds half of a surrogate pair, which UTF-8 cannot carry"),
        (b"[" * 100_000, "not valid JSON: maximum recursion depth exceeded"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON: Exceeds the limit (4300 digits)"),
    ],
)
def test_a_bad_line_of_json(line: bytes, message: str) -> None:
    gc.collect()  # a finalizer of an earlier test that runs where the stack is full fails, and so this test
    bad, good = read(line + b'\n{"prompt": "fine"}\n', ".jsonl")
    assert str(bad.problems[0]).startswith(message)
    assert good.job["prompt"] == "fine"


def test_invalid_utf8_in_text() -> None:
    assert str(read(b"ok\n\xff\xfeno\n", ".txt")[1].problems[0]) == "not valid UTF-8 at byte 1 of the line"


def test_utf16_is_named() -> None:
    with pytest.raises(BadInput, match="UTF-16"):
        read("one\n".encode("utf-16"))


def test_an_overlong_line_is_skipped_without_being_held() -> None:
    long = b"x" * (MAX_LINE_BYTES + 10)
    first, second = read(long + b"\nnext\n", ".txt")
    assert str(first.problems[0]) == "longer than 16 MiB"
    assert second.job["prompt"] == "next"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt": 5}, ["prompt: input should be a valid string"]),
        ({"prompt": ""}, ["prompt: string should have at least 1 character"]),
        ({}, ["prompt: give exactly one of prompt and messages"]),
        ({"prompt": "x", "messages": MESSAGES}, ["prompt: give exactly one of prompt and messages"]),
        ({"messages": MESSAGES, "raw": True}, ["raw: raw needs a prompt, not messages"]),
        (
            {"prompt": "x", "max_tokens": -3, "nonsense": 1},
            ["max_tokens: input should be greater than or equal to 1", "nonsense: there is no such field"],
        ),
        ({"prompt": "x", "temperature": 9}, ["temperature: input should be less than or equal to 2"]),
        ({"prompt": "x", "temperature": -0.5}, ["temperature: input should be greater than or equal to 0"]),
        ({"prompt": "x", "decoding": "no"}, ["decoding: input should be 'auto', 'medusa' or 'normal'"]),
        (
            batch({"messages": MESSAGES, "decoding": 1}),
            ["body.decoding: input should be 'auto', 'medusa' or 'normal'"],
        ),
        ({"prompt": "x", "custom_id": 5}, ["custom_id: must be a string of 1 to 512 characters"]),
        ({"prompt": "x", "custom_id": "c" * 513}, ["custom_id: must be a string of 1 to 512 characters"]),
        (
            {"prompt": "x", "custom_id": "\ud800"},
            ["custom_id: holds half of a surrogate pair, which UTF-8 cannot carry"],
        ),
        (
            {"prompt": "x", "priority": "interactive", "deadline": 4e9},
            ["deadline: a batch has one for all its lines", "priority: a batch has one for all its lines"],
        ),
        (
            {"prompt": "x", "metadata": {str(i): "" for i in range(17)}},
            ["metadata: dictionary should have at most 16 items after validation, not more"],
        ),
        (batch({"messages": MESSAGES}, method="GET"), ['method: must be "POST"']),
        (
            batch({"input": "x"}, url="/v1/embeddings"),
            ["url: must be /v1/chat/completions, /v1/completions, /v1/responses or /v1/jobs"],
        ),
        (batch({"messages": MESSAGES}, custom_id=None), ["custom_id: missing"]),
        (batch({"messages": MESSAGES}, extra=1), ["extra: there is no such field"]),
        ({"custom_id": "a", "method": "POST", "url": "/v1/completions"}, ["body: missing"]),
        (batch([]), ["body: must be a JSON object"]),  # type: ignore[arg-type]
        (
            batch({"messages": MESSAGES, "stream": True, "n": 2}),
            [
                "body.n: only 1 answer a line is possible: send a line for each",
                "body.stream: nothing can be streamed from a batch",
            ],
        ),
        (batch({"messages": "hello"}), ["body.messages: input should be a valid array"]),
        (
            batch({"messages": [{"role": "robot", "content": "x"}]}),
            ["body.messages.0.role: input should be 'system', 'user', 'assistant' or 'tool'"],
        ),
        (
            batch({"messages": MESSAGES, "logprobs": 3}),
            ["body.logprobs: must be true or false; top_logprobs is the number"],
        ),
        (
            batch({"prompt": ["a", "b"], "logprobs": True}, url="/v1/completions"),
            ["body.logprobs: must be a number here", "body.prompt: must be one text: send a line for each"],
        ),
    ],
)
def test_wrong_fields_are_named(value: object, expected: list[str]) -> None:
    assert problems(value) == expected


@pytest.mark.parametrize("length", [1, 512])
def test_the_lengths_that_a_custom_id_may_have(length: int) -> None:
    assert not read(json.dumps({"custom_id": "c" * length, "prompt": "x"}) + "\n")[0].problems


def test_a_repeated_custom_id_names_the_first_line() -> None:
    lines = read('{"custom_id":"a","prompt":"x"}\n\n{"custom_id":"a","prompt":"y"}\n')
    assert not lines[0].problems
    assert [(p.code, str(p)) for p in lines[1].problems] == [
        ("duplicate_custom_id", "custom_id: 'a' is also that of line 1")
    ]


def test_defaults_give_way_to_the_lines_own_fields() -> None:
    data = '{"prompt":"x"}\n{"prompt":"y","max_tokens":9}\n'
    assert [job["max_tokens"] for job in jobs(data, defaults={"max_tokens": 5})] == [5, 9]


def test_a_system_message_is_put_first_unless_there_is_one() -> None:
    own = [{"role": "system", "content": "mine"}, *MESSAGES]
    data = "".join(
        json.dumps(line) + "\n"
        for line in (
            {"prompt": "hello"},
            {"messages": MESSAGES},
            {"messages": own},
            batch({"prompt": "p"}, url="/v1/completions"),
        )
    )
    system = {"role": "system", "content": "be brief"}
    assert jobs(data, system="be brief") == [
        {"messages": [system, *MESSAGES]},
        {"messages": [system, *MESSAGES]},
        {"messages": own},
        {"prompt": "p", "raw": True},
    ]


def test_raw_and_model_options() -> None:
    assert jobs('{"prompt":"x","model":"gpt"}', raw=True, model="ours") == [
        {"prompt": "x", "raw": True, "model": "ours"}
    ]
    assert jobs('{"prompt":"x","model":"gpt"}', model="") == [{"prompt": "x"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "q", "form": Format.BATCH}, "batch lines are requests already"),
        ({"column": "q", "template": "{{ q }}"}, "give either a template or --column"),
        ({"system": "s", "raw": True}, "--system needs the chat template"),
        ({"defaults": {"max_tokens": 0}}, "--max-tokens: input should be greater than or equal to 1"),
        ({"defaults": {"top_p": 3.0}}, "--top-p: input should be less than or equal to 1"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ReadOptions(**options).check()


def test_ids_that_find_no_room_are_one_line(cli: Cli) -> None:
    lines = [{"prompt": "x", "custom_id": f"{n:0512}"} for n in range(8000)]
    write_jsonl(cli.folder / "p.jsonl", lines)
    ended = cli("validate", "p.jsonl", file_kb=100)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the temporary folder cannot hold the list of custom_ids: ")
    assert ended.stderr.count("\n") == 1
    assert cli("validate", "p.jsonl").stdout == "8000 good, 0 bad; format: jsonl\n"
