"""A prompt template over the columns of a table."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import meta, nodes

from tables.base.errors import TableError
from tables.base.values import is_missing
from tables.templates.cost import CURRENT, Cost
from tables.templates.filters import weight
from tables.templates.language import environment, parse

ROW = "row"  # all columns, for names that are no identifiers: row["First name"]
LOOP = "loop"
MAX_SOURCE = 64 * 1024
MAX_RENDERED = 16 * 1024 * 1024
MOST_NAMED = 8


class Template:
    """missing: how often each column that the template uses had no value, among the rendered rows."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise TableError(
                f"the template has {len(source):,} characters; at most {MAX_SOURCE:,} are possible"
            )
        self._environment = environment()
        try:
            tree = parse(self._environment, source)
            self._names = _names(tree)
            self._all_columns = _reads_whole_row(tree)
            self._places = sum(1 for _ in tree.find_all(nodes.Expr))
            self._own = sum(
                len(each.value) for each in tree.find_all(nodes.Const) if isinstance(each.value, str)
            )
            self._template = self._environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise TableError(f"the template, line {error.lineno}: {error.message}") from None
        except TableError:
            raise
        except Exception as error:  # Jinja and Python raise many kinds for absurd sources
            kind = "nested too deeply" if isinstance(error, RecursionError | SyntaxError) else str(error)
            raise TableError(f"the template cannot be used: {kind}") from None
        self.missing: Counter[str] = Counter()

    @classmethod
    def of_column(cls, column: str) -> Template:
        """The value of one column."""
        return cls("{{ row[" + _quoted(column) + "] }}")

    @property
    def names(self) -> frozenset[str]:
        """The columns that it names."""
        return self._names

    def check(self, columns: Sequence[str]) -> None:
        """Raise TableError for a column that does not exist."""
        for name in sorted(self._names - set(columns)):
            raise TableError(unknown_column(name, columns))

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for one row. Raises TableError."""
        used = values if self._all_columns else {name: values.get(name) for name in self._names}
        for name in self._names:
            if is_missing(values.get(name)):
                self.missing[name] += 1
        try:
            size = self._own + sum(len(name) + weight(value) for name, value in used.items())
        except RecursionError:
            raise TableError("the template fails for this row: a value is nested too deeply") from None
        token = CURRENT.set(Cost(self._places, size))
        try:
            return self._text(used)
        except TableError:
            raise
        except Exception as error:  # as of comparing text with a number
            raise TableError(f"the template fails for this row: {error}"[:500]) from None
        finally:
            CURRENT.reset(token)

    def _text(self, used: Mapping[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate({ROW: used, **used}):
            parts.append(part)
            size += len(part)
            if size > MAX_RENDERED:
                raise TableError(f"the template makes more than {MAX_RENDERED:,} characters of one row")
        return "".join(parts)


def unknown_column(name: str, columns: Sequence[str]) -> str:
    """The message for a column that does not exist, with the nearest names."""
    lower = {column.lower(): column for column in columns}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
    if near:
        return f"there is no column {name!r}; did you mean {' or '.join(map(repr, near))}?"
    shown = ", ".join(map(repr, columns[:MOST_NAMED])) + (", ..." if len(columns) > MOST_NAMED else "")
    return f"there is no column {name!r}; the columns are {shown}"


def _names(tree: nodes.Template) -> frozenset[str]:
    """The columns that it reads by name: as variables, or as fields of `row`."""
    names = meta.find_undeclared_variables(tree) - {ROW, LOOP}
    return frozenset(names | {name for name in map(_field_of_row, _lookups(tree)) if name is not None})


def _reads_whole_row(tree: nodes.Template) -> bool:
    """Whether it uses `row` otherwise than for one column that it names."""
    named = sum(_field_of_row(node) is not None for node in _lookups(tree))
    return sum(node.name == ROW for node in tree.find_all(nodes.Name)) > named


def _lookups(tree: nodes.Template) -> list[nodes.Getattr | nodes.Getitem]:
    return [*tree.find_all(nodes.Getattr), *tree.find_all(nodes.Getitem)]


def _field_of_row(node: nodes.Getattr | nodes.Getitem) -> str | None:
    """The name in row.name and row["name"]; None for anything else."""
    if not (isinstance(node.node, nodes.Name) and node.node.name == ROW):
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
