"""The Lua scripts carry what they use of tasks/store/lua/lib, and nothing else."""

from __future__ import annotations

import re

import pytest

from tasks.store.scripts import Argument, assemble, encode, needs, read_sources

BASE = {"lib/base": "local P = KEYS[1]\n"}
SOURCES = read_sources()
LIBRARIES = {name.removeprefix("lib/") for name in SOURCES if name.startswith("lib/")}
STRING = re.compile(r"'(?:\\.|[^'\\\n])*'")
DEFINITION = re.compile(r"^local (?:function (\w+)|(\w+(?:, \w+)*) =)", re.MULTILINE)
NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")


def code(source: str) -> str:
    """Without comments and strings, which may name anything."""
    return STRING.sub("''", re.sub(r"--[^\n]*", "", source))


def defined(source: str) -> set[str]:
    """The functions and constants at the top level."""
    return {
        name
        for function, constants in DEFINITION.findall(code(source))
        for name in (function or constants).split(", ")
    }


DEFINED = {library: defined(SOURCES[f"lib/{library}"]) for library in LIBRARIES}


def used(name: str) -> set[str]:
    """What a file uses of the libraries."""
    source = SOURCES[name]
    own = defined(source) if name.startswith("lib/") else set()
    return set(NAME.findall(code(source))) & set.union(*DEFINED.values()) - own


def test_no_two_libraries_define_the_same() -> None:
    assert sum(map(len, DEFINED.values())) == len(set.union(*DEFINED.values()))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_file_needs_the_libraries_that_it_uses_and_no_other(name: str) -> None:
    assert needs(SOURCES[name]) == sorted(part for part in LIBRARIES if DEFINED[part] & used(name))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_file_hides_nothing_of_a_library(name: str) -> None:
    """A local of the same name would be taken for a use of it."""
    locals_ = re.findall(r"\blocal (?:function )?(\w+(?:, \w+)*)", code(SOURCES[name]))
    named = [each for names in locals_ for each in names.split(", ")]
    others = set.union(*(DEFINED[part] for part in LIBRARIES if f"lib/{part}" != name))
    assert not others & set(named)


def test_everything_in_the_libraries_is_used() -> None:
    somewhere = set.union(*(used(name) for name in SOURCES))
    for library, names in DEFINED.items():
        source = code(SOURCES[f"lib/{library}"])
        unused = {name for name in names - somewhere if len(re.findall(rf"\b{name}\b", source)) == 1}
        assert unused == set(), library
    assert {part for name in SOURCES for part in needs(SOURCES[name])} == LIBRARIES


def test_a_library_comes_once_and_behind_what_it_needs() -> None:
    sources = {
        **BASE,
        "lib/a": "-- needs: base\nlocal A = P\n",
        "lib/b": "-- needs: a, base\nlocal B = A\n",
        "jobs/x": "-- needs: b\nreturn B\n",
    }
    parts = (sources[name] for name in ("lib/base", "lib/a", "lib/b", "jobs/x"))
    assert assemble(sources) == {"jobs/x": "".join(parts)}


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"jobs/x": "return 1\n"}, "jobs/x.lua: the first line must name"),
        ({"jobs/x": "-- about it\n-- needs: base\n"}, "jobs/x.lua: the first line must name"),
        ({"jobs/x": "-- needs: base, gone\n"}, "jobs/x.lua needs lib/gone.lua, which is not there"),
        ({"jobs/x": "-- needs: a\n", "lib/a": "-- needs: gone\n"}, "lib/a.lua needs lib/gone.lua"),
        (
            {"jobs/x": "-- needs: a\n", "lib/a": "-- needs: b\n", "lib/b": "-- needs: a\n"},
            "lib/a.lua needs itself, through lib/a, lib/b",
        ),
    ],
)
def test_what_cannot_be_put_together(sources: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        assemble({**BASE, **sources})


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("a", "a"),
        (7, 7),
        (None, ""),
        (
            {"id": "a", "owner": None, "codes": {}, "lines": [("é", 1)]},
            '{"id":"a","codes":{},"lines":[["é",1]]}',
        ),
    ],
)
def test_arguments(argument: Argument, text: str | int) -> None:
    """What is None is nil in the script, and never cjson.null, which is true."""
    assert encode(argument) == text
