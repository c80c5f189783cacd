"""What a body of a few megabytes may cost before it is refused, in memory and in time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tasks.base.errors import InvalidRequest
from tasks.batches.line_decoder import InvalidLine, LineDecoder
from tasks.records.endpoints import CHAT, JOBS
from tasks.schema.job_request import (
    MAX_MESSAGES,
    MAX_STOP,
    MAX_VALUES,
    MOST_SHOWN,
    JobRequest,
    Problem,
    has_too_many_values,
    parse,
)
from tests.support.workers import ROOT

SIZE = 4_000_000  # bytes, below max_body_bytes
MOST_MB = 400  # of which making the bodies takes 100; without a bound it is up to 4,800
MOST_S = 10.0  # of CPU; without a bound it is up to 25, on any machine
USER = {"role": "user", "content": "x"}
# What stands where "@" is, again and again; an int is another each time.
HOSTILE = {
    "tool calls": ('{"messages":[{"role":"assistant","tool_calls":[@]}]}', "{}"),
    "messages": ('{"messages":[@]}', "{}"),
    "numbers as messages": ('{"messages":[@]}', "1"),
    "stops": ('{"prompt":"x","stop":[@]}', "1"),
    "tools": ('{"prompt":"x","tools":[@]}', "{}"),
    "parts of a message": ('{"messages":[{"role":"user","content":[@]}]}', "{}"),
    "unknown fields": ('{"prompt":"x",@}', '"%x":1'),
    "unknown fields of a message": ('{"messages":[{"role":"user","content":"",@}]}', '"%x":1'),
    "metadata": ('{"prompt":"x","metadata":{@}}', '"%x":1'),
    "biases": ('{"prompt":"x","logit_bias":{@}}', '"x%x":"a"'),
    "token ids": ('{"prompt":"x","stop_token_ids":[@]}', "1"),
    "parameters of a tool": (
        '{"prompt":"x","tools":[{"type":"function","function":{"name":"a","parameters":{"a":[@]}}}]}',
        "[]",
    ),
    "a schema": (
        '{"prompt":"x","response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"a":[@]}}}}',
        "{}",
    ),
    "nesting": ('{"prompt":@}', "["),
    "digits": ('{"prompt":"x","seed":@}', "9"),
    "large numbers": ('{"prompt":"x","stop_token_ids":[@]}', "9" * 4000),
    "webhook events": ('{"prompt":"x","webhook":{"url":"http://a/","events":[@]}}', "1"),
}
READERS = {
    "job": "parse(body, JobRequest)",
    "chat": f"read(body, {CHAT!r}, 10**9)",
    "line": f'LineDecoder({CHAT!r}, 10**7, 1).decode(1, b\'{{"custom_id":"a","method":"POST","url":'
    f'"{CHAT}","body":\' + body + b\'}}\')',
}
MEASURED = """
import json, resource, sys, time
from api.service.online_request import read
from tasks.batches.line_decoder import LineDecoder
from tasks.base.errors import InvalidRequest
from tasks.schema.job_request import JobRequest, parse

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak()
for name, wrap, unit, separator, count, reader in json.load(sys.stdin):
    each = (unit % n if "%" in unit else unit for n in range(count))
    body = wrap.replace("@", separator.join(each)).encode()
    began = time.process_time()
    try:
        eval(reader)
    except InvalidRequest as error:
        assert len(str(error)) < 2000
    print(json.dumps([name, len(body), time.process_time() - began, peak() - before]))
"""


def cases() -> Iterator[tuple[str, str, str, str, int, str]]:
    """Each with as many values as fit, and as are taken, to each reader."""
    for name, (wrap, unit) in HOSTILE.items():
        separator = "" if unit in ("[", "9") else ","
        count = SIZE // (len(unit) + len(separator) + ("%" in unit) * 4)
        for reader, code in READERS.items():
            yield f"{name}, {reader}", wrap, unit, separator, count, code
            if separator:
                yield f"{name}, fewer, {reader}", wrap, unit, separator, min(count, MAX_VALUES - 20), code


@pytest.mark.slow
def test_a_body_costs_little_whatever_is_in_it() -> None:
    """In a process of its own, so that its peak of memory is that of these bodies."""
    run = [sys.executable, "-c", MEASURED]
    done = subprocess.run(run, input=json.dumps(list(cases())), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name, size, seconds, megabytes in map(json.loads, done.stdout.splitlines()):
        print(f"{name:40} {size:9,} bytes {seconds:.2f} s {megabytes:.0f} MB")
        assert size < 1.1 * SIZE
        assert seconds < MOST_S, name
        assert megabytes < MOST_MB, name


def test_too_many_values_are_counted_outside_of_texts() -> None:
    for prompt in (
        "," * SIZE,
        '"[{,' * (SIZE // 8),
        "\\" * (SIZE // 4) + "," * MAX_VALUES,
        '\\",' * MAX_VALUES,
    ):
        for ascii_only in (True, False):
            body = json.dumps({"prompt": prompt}, ensure_ascii=ascii_only).encode()
            assert not has_too_many_values(body)
            assert parse(body, JobRequest).prompt == prompt
    for value in ([1] * (MAX_VALUES + 1), ["a"] * (MAX_VALUES + 1), [[]] * (MAX_VALUES // 2 + 1)):
        assert has_too_many_values(json.dumps(value).encode())
    for value in ([1] * (MAX_VALUES - 1), {f"{n}": "a" for n in range(MAX_VALUES - 1)}):
        assert not has_too_many_values(json.dumps(value).encode())
    assert not has_too_many_values(json.dumps({f"{n},": "a," for n in range(MAX_VALUES - 1)}).encode())
    commas = b'"' + b"," * (MAX_VALUES + 1) + b'"'
    assert has_too_many_values(commas + b'""' * (2 * MAX_VALUES))  # no JSON, and slow to look through


def test_long_conversations_and_large_schemas_are_taken() -> None:
    names = [f"field_{n}" for n in range(10_000)]
    schema = {"type": "object", "properties": {"a": {"enum": names}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [USER] * MAX_MESSAGES, "response_format": form}
    assert len(parse(json.dumps(body).encode(), JobRequest).messages or []) == MAX_MESSAGES


def test_too_many_values_are_one_clear_error() -> None:
    body = json.dumps({"messages": [USER] * MAX_VALUES}).encode()
    with pytest.raises(InvalidRequest, match=rf"^the body: holds more than {MAX_VALUES:,} values$") as caught:
        parse(body, JobRequest)
    assert caught.value.code == "too_many_values"
    refused = LineDecoder(JOBS, 10**7, 1).decode(1, body)
    assert isinstance(refused, InvalidLine)
    assert refused.problem.code == "too_many_values"


def test_a_refusal_repeats_little_of_what_it_refuses() -> None:
    """Of the lines of a batch a hundred are shown in its record."""
    line = {"custom_id": "a", "method": "POST", "url": JOBS, "body": {"prompt": "x", "y" * 10**6: 1}}
    refused = LineDecoder(JOBS, 10**7, 1).decode(1, json.dumps(line).encode())
    assert isinstance(refused, InvalidLine)
    assert len(str(refused.problem)) <= 2 * MOST_SHOWN + 2
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps({"prompt": "x", "y" * 10**6: 1}).encode(), JobRequest)
    assert len(str(caught.value)) <= 2 * MOST_SHOWN + 2
    assert Problem("m" * 1000).message == "m" * MOST_SHOWN


@pytest.mark.parametrize("stop", ["s" * (MAX_STOP + 1), ["a", "s" * (MAX_STOP + 1)]])
def test_a_stop_is_no_longer_than_is_looked_for_at_each_token(stop: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^stop\.\d: string should have at most 512 characters$"):
        parse(json.dumps({"prompt": "x", "stop": stop}).encode(), JobRequest)
    assert parse(json.dumps({"prompt": "x", "stop": "s" * MAX_STOP}).encode(), JobRequest).stop
