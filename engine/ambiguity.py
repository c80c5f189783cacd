"""How many ways of reading an answer a grammar may have to keep open at once.

llama.cpp follows all of them at each character, and compares each with each. A schema whose choices
cannot be told apart by how they begin, with such choices inside again, multiplies them: ten levels of
three would stop the engine for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_OPEN = 500  # ways; so many cost 3 ms a character


@dataclass(frozen=True, slots=True)
class Shape:
    """An object or array: the texts it may begin with, the rules inside it, and how many may come next."""

    begins: tuple[str, ...]
    inside: tuple[str, ...] = ()
    ways: int = 1


SHAPES = {"value": Shape(("",)), "object": Shape(("{",)), "array": Shape(("[",))}


def is_too_open(root: str, choices: Mapping[str, list[str]], shapes: Mapping[str, Shape]) -> bool:
    """Whether more than MAX_OPEN ways may be open. choices: rules that are one of others, by name."""
    most: dict[str, int] = {}
    todo = [(root, 1)]
    while todo:
        name, open_ways = todo.pop()
        if most.get(name, 0) >= open_ways:
            continue  # so a schema that holds itself comes to an end, or to too many ways
        most[name] = open_ways
        if name in choices:
            ways = choices[name]
            alike = _alike(ways, shapes) if len(ways) * open_ways <= MAX_OPEN else {}
            todo += [(way, open_ways * alike.get(way, 1)) for way in ways]
        else:
            shape = shapes.get(name, Shape(()))
            ways = [""] * shape.ways
            todo += [(inner, open_ways) for inner in shape.inside]
        if len(ways) * open_ways > MAX_OPEN:
            return True
    return False


def _alike(ways: list[str], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """For each object or array among these how many of them cannot be told from it when they begin."""
    known = [way for way in ways if way in shapes]
    alike = {way: {way} for way in known}
    prefixes: list[tuple[str, str]] = []  # each begins the next, and all of them the text that follows
    for text, way in sorted((text, name) for name in known for text in shapes[name].begins):
        while prefixes and not text.startswith(prefixes[-1][0]):
            prefixes.pop()
        for _, other in prefixes:
            alike[way].add(other)
            alike[other].add(way)
        prefixes.append((text, way))
    return {way: len(others) for way, others in alike.items()}
