"""Templates render text as it stands, name what is wrong, and cannot cost more than their bound."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables.base.errors import TableError
from tables.templates import template as module
from tables.templates.template import Template

pytestmark = pytest.mark.slow

BIG = "a" * 1_000_000


def render(source: str, **values: Any) -> str:
    template = Template(source)
    template.check([*values])
    return template.render(values)


def refused(source: str, **values: Any) -> str:
    with pytest.raises(TableError) as caught:
        render(source, **values)
    return str(caught.value)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_values_are_text_and_escaped_for_nobody(value: str) -> None:
    assert render("<{{ a }}>", a=value) == f"<{value}>"
    assert Template.of_column("it's a \\ {{ name").render({"it's a \\ {{ name": value}) == value


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ none }}{{ number }} {{ half }} {{ yes }}", "3 0.5 true"),
        ("{{ day }} {{ day.year }} {{ items }}", '2020-01-02 2020 {"k":["ü",1]}'),
        ("{{ items.k[0] }}{{ items['k'][1] }}{{ items.none.at.all }}", "ü1"),
        ('{{ row["First name"] }}, {{ row.word }}', "Ann, b"),
        (
            "{% for name, value in row|items %}{% if value is string %}{{ name }};{% endif %}{% endfor %}",
            "First name;word;",
        ),
        (
            "{% for x in [3, 1, 2]|sort %}{{ loop.index }}:{{ x }}{{ ' ' if not loop.last }}{% endfor %}",
            "1:1 2:2 3:3",
        ),
        ("{{ word|upper ~ number }} {{ number + 1 - 2 }} {{ word + 'c' }} {{ -number }}", "B3 2 bc -3"),
        (
            "{{ [1, 'x', none]|join('-') }} {{ 'abc'|replace('b', 'x') }} {{ 'abcdef'|truncate(3) }}",
            "1-x- axc abc...",
        ),
        (
            "{{ items|tojson }} {{ 'a\"<'|tojson }} {{ 2.345|round(1) }} {{ 'abc'[:2] }}",
            '{"k":["ü",1]} "a\\"<" 2.3 ab',
        ),
        ("{{ items|string|length }} {{ none|default('x', true) }} {{ 'x' in 'xy' }}", "13 x true"),
        ("{# nothing #}{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
    ],
)
def test_the_language(source: str, text: str) -> None:
    values = {"none": None, "number": 3, "half": 0.5, "yes": True, "First name": "Ann", "word": "b"}
    values |= {"day": datetime.date(2020, 1, 2), "items": {"k": ["ü", 1]}}
    assert render(source, **values) == text


def test_a_column_that_does_not_exist_is_answered_with_the_nearest_names() -> None:
    assert refused("{{ reveiw }}", review="x", id=1) == "there is no column 'reveiw'; did you mean 'review'?"
    assert refused("{{ row['Revew'] }}", Review=1) == "there is no column 'Revew'; did you mean 'Review'?"
    assert refused("{{ zzz }}", a=1, b=2) == "there is no column 'zzz'; the columns are 'a', 'b'"
    many = {f"c{n}": n for n in range(9)}
    assert refused("{{ zzz }}", **many).endswith("'c7', ...")


def test_missing_values_are_empty_and_counted_where_they_are_used() -> None:
    template = Template("{{ a }}-{{ b }}")
    assert [template.render({"a": a, "b": b, "c": None}) for a, b in [(None, 1), ("", 2), (0, "x")]] == [
        "-1",
        "-2",
        "0-x",
    ]
    assert template.missing == {"a": 2}


@pytest.mark.parametrize(
    "source",
    [
        '{{ "x" * 1000000000 }}',
        "{{ 9 ** 9 ** 9 }}",
        '{{ "%1000000000d" % 1 }}',
        '{{ "{:>1000000000}".format(1) }}',
        "{{ a.center(1000000000) }}",
        "{{ range(1000000000) }}",
        "{{ lipsum(1000000) }}",
        "{% set a = a ~ a %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for x in a recursive %}{{ loop(a) }}{% endfor %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{{ a.__class__ }}",
        "{{ self }}",
        "{{ a|attr('__class__') }}",
        "{{ a|center(1000000000) }}",
        "{{ a|map('upper') }}",
        "{{ a is divisibleby 3 }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{% for x in a %}" * 30 + "{% endfor %}" * 30,
        "{{ a",
        "{% if a %}",
        "x" * (module.MAX_SOURCE + 1),
    ],
)
def test_what_the_language_lacks_is_one_line_before_any_row(source: str) -> None:
    with pytest.raises(TableError) as caught:
        Template(source)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ a|join(a) }}",
        "{{ a|replace('', a) }}",
        "{{ a|replace('a', a)|replace('a', a) }}",
        "{{ " + "~".join(["a"] * 500) + " }}",
        "{{ [" + ",".join(["a"] * 500) + "]|tojson }}",
        "{{ [" + ",".join(["a"] * 500) + "]|upper }}",
        "{{ " + "+".join(["a"] * 90) + " }}",
        "{% for x in a %}{% for y in a %}{% endfor %}{% endfor %}",
        "{% for x in [a ~ a ~ a] %}{% for y in a[:999] %}{{ x in x }}{% endfor %}{% endfor %}",
        "{% for x in a %}{{ a == a }}{% endfor %}",
    ],
)
def test_a_template_that_multiplies_its_row_is_stopped(source: str) -> None:
    began = time.process_time()
    assert (
        refused(source, a=BIG) == "the template does too much for one row: its loops or its text are too long"
    )
    assert time.process_time() - began < 60, "it would take hours, or all memory"


def test_a_prompt_has_a_bound_too() -> None:
    assert refused("{{ a }}" * 500, a=BIG) == "the template makes more than 16,777,216 characters of one row"


def test_what_ordinary_rows_need_is_far_from_the_bound() -> None:
    loop = "{% for m in messages %}{{ loop.index }}. {{ m.role|upper }}: {{ m.text }}\n{% endfor %}"
    messages = [{"role": "user", "text": "word " * 40}] * 50
    assert len(render(loop, messages=messages).splitlines()) == 50
    assert len(render("{{ a }}{{ b }}{{ a|trim }}", a=BIG, b=BIG)) == 3_000_000


def test_an_error_of_one_row_is_one_line() -> None:
    assert refused("{{ 1 + a }}", a="x").startswith("the template fails for this row: unsupported operand")
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert "fails for this row" in refused("{{ a }}", a=deep)
