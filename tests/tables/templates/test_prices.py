"""What a template costs for one row stays about a second, whatever it is made of."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from tables.base.errors import TableError
from tables.templates.template import Template

pytestmark = pytest.mark.slow

MOST_S = 3.5  # of processor time; on a machine of 2023 the dearest takes 1.4 s
SIZE = 1_000_000
PLACES = (96, 48, 24, 12, 8, 6, 4, 3, 2, 1)
VALUES: dict[str, Any] = {
    "letters": "a" * SIZE,
    "words": "a " * (SIZE // 2),
    "mixed": "aB-" * (SIZE // 3),
    "controls": "\1" * SIZE,
    "texts": ["a"] * (SIZE // 10),
    "empty": [""] * (SIZE // 8),
    "numbers": [n * 7919 % 100_003 / 2 for n in range(SIZE // 40)],
    "objects": [{"k": "a" * 20, "n": n} for n in range(SIZE // 64)],
}
FILTERS = [
    "list",
    "reverse|list",
    "upper",
    "capitalize",
    "sort",
    "join",
    "join(',')",
    "list|join",
    "sort(attribute='k.k.k')",
    "title",
    "tojson",
    "wordcount",
    "trim(value)",
    "replace('a', 'bc')",
]


def seconds(source: str, value: Any) -> tuple[float, bool]:
    """The time, and whether it went through."""
    template = Template(source)
    began = time.process_time()
    done = False
    with contextlib.suppress(TableError):
        template.render({"value": value})
        done = True
    return time.process_time() - began, done


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shape", VALUES)
def test_the_most_that_is_accepted_of_a_filter(name: str, shape: str) -> None:
    """As many places as the bound allows; also the refusal of more comes soon."""
    for places in PLACES:
        took, done = seconds(f"{{% if (value|{name}) is none %}}{{% endif %}}" * places, VALUES[shape])
        assert took < MOST_S, f"{places} places"
        if done:
            return


@pytest.mark.parametrize(
    "body",
    [
        "('" + "a" * 30_000 + "' if x else '')|sort",
        "('" + "a" * 30_000 + "b') in ('" + "a" * 30_000 + "' if x else '')",
        "('" + "a b-" * 8_000 + "' if x else '')|title",
        "x|sort|join|title|trim|wordcount|string|tojson|upper",
    ],
)
def test_text_of_the_template_itself_is_paid_for_too(body: str) -> None:
    for turns in (100_000, 10_000, 1_000, 100, 10, 1):
        source = f"{{% for x in value %}}{{% if {body} %}}{{% endif %}}{{% endfor %}}"
        took, done = seconds(source, "a" * turns)
        assert took < MOST_S, f"{turns:,} turns"
        if done:
            return
    pytest.fail("one turn must be possible")


def test_characters_to_trim_are_searched_one_after_the_other() -> None:
    late = "b" * (SIZE // 5) + "a"
    took, done = seconds("{{ value[1]|trim(value[0]) }}", (late, "a" * SIZE))
    assert (took < MOST_S, done) == (True, False)


def test_ordinary_rows_are_far_from_the_bound() -> None:
    messages = [{"role": "user", "content": "It's a word, or two. " * 50}] * 100
    source = (
        "{% for m in value|sort(attribute='role') %}{{ m.role|title }}: {{ m.content|trim|truncate(200) }} "
        "({{ m.content|wordcount }} words){% endfor %}{{ value|join(', ')|length }}"
    )
    assert seconds(source, messages)[1]
    chat = "{% for m in value %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert seconds(chat, [{"role": "user", "content": "x" * 4000}] * 100)[1]
