"""No schema takes more than the limits of time and memory, whatever its values: held with little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine import RequestRefused
from engine.llama.model import Model
from engine.sampling import grammar_trials as trials_module
from engine.sampling.grammar import GrammarConstraint
from tasks.base.settings import Settings
from tests.engine.helpers.answers import FIRST_BYTE, Writer, failure, grammar_of
from tests.engine.sampling.test_grammar_limits import PRIME, linux, multiple, optional

ROOM = 1 << 30  # bytes for all that a test compiles; without limits one schema takes more


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A compiler that takes more aborts this process."""
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (addresses + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


COSTLY = {
    "a multiple of a large prime": multiple(PRIME),
    "a multiple of a prime": multiple(999_983),
    "multiples in a tuple": grammar_of(
        {"prefixItems": [{"type": "integer", "multipleOf": 99_991 + i} for i in range(30)], "minItems": 30}
    ),
    "8,000 optional properties": optional(8000),
}


@linux
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("grammar", COSTLY.values(), ids=COSTLY)
@pytest.mark.slow
def test_what_costs_too_much_is_refused_before_it_costs_the_worker(writer: Writer, grammar: str) -> None:
    for _ in range(3):
        with pytest.raises(RequestRefused, match="takes more than") as refused:
            writer.begin(grammar)
        assert (refused.value.code, refused.value.param) == ("schema_too_complex", "response_format")


# Any values

sizes = st.one_of(
    st.integers(-(10**20), 10**20),
    st.sampled_from([10**exponent + delta for exponent in range(20) for delta in (-11, 0, 3)]),
)
numbers = st.one_of(sizes, st.floats(), st.sampled_from([1e-300, 1e300, 5e-324, 0.1, 1e-7, 0.123457]))
counted = st.builds(
    lambda form, n, m: form.replace("N", str(n)).replace("M", str(m)),
    st.sampled_from(
        [
            "^.{N}$",
            "^(a{N}){M}$",
            "^.*a.{N}$",
            "^(.{0,N}b){0,M}$",
            "^[a-z]{N,}$",
            "^(a?){N}$",
            "^\\w{N}\\W{M}$",
        ]
    ),
    *(st.sampled_from([0, 1, 30, 900, 10_000, 10**6, 10**9]),) * 2,
)
values = {
    **dict.fromkeys(("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), numbers),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), sizes),
    **dict.fromkeys(("minProperties", "maxProperties"), sizes),
    "pattern": counted,
    "type": st.sampled_from(["integer", "number", "string", "array", "object"]),
    "enum": st.integers(1, 10_000).map(lambda n: [f"v{i * 7919}" for i in range(n)]),
    "format": st.sampled_from(["date-time", "uuid", "email", "uri", "ipv6"]),
    "patternProperties": st.dictionaries(counted, st.just({}), max_size=3),
    "properties": st.integers(1, 3000).map(lambda n: {f"p{i}": {} for i in range(n)}),
}
leaves = st.fixed_dictionaries({}, optional=values)
extreme = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda kind, many: {kind: many}, st.sampled_from(["anyOf", "allOf", "oneOf"]), st.lists(inner)
        ),
        st.builds(
            lambda one, n: {"items": one, "minItems": n, "maxItems": 2 * n}, inner, st.integers(0, 10**6)
        ),
        st.builds(lambda one: {"items": one, "anyOf": [{"$ref": "#"}, {"type": "null"}]}, inner),
        st.builds(lambda one, other: {"additionalProperties": one, "allOf": [other]}, inner, inner),
        st.builds(lambda many: {"prefixItems": many}, st.lists(inner, max_size=4)),
        st.builds(lambda one, n: {"allOf": [one] * n}, inner, st.integers(0, 300)),
    ),
    max_leaves=6,
)


NESTED: dict[str, Any] = {"type": "string"}
for _ in range(200):
    NESTED = {"type": "object", "properties": {"x": NESTED}, "required": ["x"]}
INSIDE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}
EXTREME: dict[str, dict[str, Any]] = {
    "a minimum of 4,000 digits": {"type": "integer", "minimum": int("9" * 4000)},
    "between two large numbers": {"type": "integer", "minimum": -(10**18), "maximum": 10**18 + 3},
    "a string without end": {"type": "string", "maxLength": 10**9},
    "a long string": {"type": "string", "minLength": 10**9},
    "a list without end": {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    "a repeated pattern": {"type": "string", "pattern": "^(a{1000}){1000}$"},
    "patterns in each other": {"type": "string", "pattern": "^((a{0,100}b){0,100}c){0,100}$"},
    "10,000 values": {"enum": [f"value {n}" for n in range(10_000)]},
    "200 levels": NESTED,
    "a cycle": {"type": "array", "items": {"$ref": "#"}},
    "a cycle of two": {**INSIDE, "$defs": {"b": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
    "a cycle without an end": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    **{
        f"a product of {kind}": {
            "allOf": [{kind: [{"type": "string", "maxLength": n + m} for n in range(20)]} for m in range(20)]
        }
        for kind in ("anyOf", "oneOf")
    },
}
BODY = Settings.model_fields["max_body_bytes"].default
LONGEST_S = 20.0  # of a busy machine, for what may have LONG_CPU_S of a processor


@linux
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("schema", EXTREME.values(), ids=EXTREME)
def test_an_extreme_value_is_answered_in_time(writer: Writer, schema: dict[str, Any]) -> None:
    began = time.monotonic()
    error = failure(lambda: writer.begin(grammar_of(schema)))
    assert time.monotonic() - began < LONGEST_S
    if error is not None:
        assert error.code in ("invalid_schema", "schema_too_complex")
        assert "\n" not in error.message


def letters(value: Any, known: dict[int, int]) -> int:
    """About how many its JSON has, which is not written: 300 times itself at each level takes gigabytes."""
    if id(value) not in known:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = (
            sum(letters(part, known) + 2 for part in parts)
            if isinstance(value, dict | list)
            else len(str(value)) + 2
        )
    return known[id(value)]


@linux
@pytest.mark.usefixtures("little_memory")
@given(schema=extreme, strict=st.booleans())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.slow
def test_no_values_take_more_than_the_limits(quick: Writer, schema: Any, strict: bool) -> None:
    assume(letters(schema, {}) <= BODY)

    def write() -> None:
        constraint = quick.begin(grammar_of(schema, strict))
        for _ in range(20):
            constraint.accept(int(np.flatnonzero(constraint.allowed())[0]))

    error = failure(write)
    if error is not None:
        assert error.code in ("invalid_schema", "schema_too_complex", "grammar_too_complex")
        assert "\n" not in error.message


@pytest.fixture
def quick(tiny_gguf: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """Tighter limits, so that many schemas can be tried."""
    monkeypatch.setattr(trials_module, "SHORT_CPU_S", 0.05)
    monkeypatch.setattr(trials_module, "LONG_CPU_S", 0.1)
    writer = Writer(Model(tiny_gguf))
    yield writer
    writer.close()


@linux
def test_what_grows_while_it_is_written_has_a_limit(writer: Writer) -> None:
    """A state for every way in which the last 30 characters may have gone."""
    grammar = grammar_of({"type": "string", "pattern": "^.*a.{30}$"})
    rng = np.random.default_rng(1)
    before = resident()
    held = [writer.begin(grammar) for _ in range(3)]

    def write(constraint: GrammarConstraint) -> None:
        constraint.accept(FIRST_BYTE + ord('"'))
        for _ in range(100_000):
            constraint.allowed()
            constraint.accept(FIRST_BYTE + ord(rng.choice(["a", "b"])))

    for constraint in held:
        error = failure(partial(write, constraint))
        assert error
        assert error.code == "grammar_too_complex"
    assert resident() - before < len(held) * (32 << 20)
