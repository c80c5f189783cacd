"""The part of Jinja that templates may use: values, conditions, loops and filters whose cost is bounded.

Jinja's sandbox keeps templates from Python's internals, but not from using up time and memory. So there are
no calls, assignments and macros, no multiplication and powers, and only the filters below.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import ChainableUndefined, LoopContext
from jinja2.sandbox import SandboxedEnvironment

from tables.base.errors import TableError
from tables.templates.filters import ADD, CONCAT, LOOP, filters_of, text_of_any

ALLOWED = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Filter,
    nodes.Test,
    nodes.Keyword,
    nodes.If,
    nodes.CondExpr,
    nodes.For,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Neg,
    nodes.Add,
    nodes.Sub,
    nodes.Concat,
    nodes.List,
    nodes.Tuple,
)
WORDS = {
    nodes.Call: "calls",
    nodes.Assign: "set",
    nodes.AssignBlock: "set",
    nodes.Macro: "macros",
    nodes.Mul: "*",
    nodes.Pow: "**",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}
PARTS_OF_DATES = ("year", "month", "day", "hour", "minute", "second")
PARTS_OF_LOOPS = ("index", "index0", "first", "last", "length", "revindex", "revindex0")
TESTS = (
    "defined",
    "undefined",
    "none",
    "string",
    "number",
    "boolean",
    "true",
    "false",
    "mapping",
    "in",
    "eq",
)


def environment() -> jinja2.Environment:
    made = _Environment(
        autoescape=False,
        undefined=ChainableUndefined,
        finalize=text_of_any,
        keep_trailing_newline=False,
    )
    made.globals.clear()
    made.filters = filters_of(made.filters)
    made.tests = {name: made.tests[name] for name in TESTS}
    return made


def parse(made: jinja2.Environment, source: str) -> nodes.Template:
    """The checked template, with its loops and sums paid for. Raises TableError and jinja2.TemplateError."""
    tree = made.parse(source)
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, ALLOWED) or (isinstance(node, nodes.For) and node.recursive):
            word = WORDS.get(type(node), type(node).__name__.lower())
            raise TableError(f"the template, line {node.lineno}: {word} cannot be used here")
        if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            raise TableError(f"the template, line {node.lineno}: {node.attr} cannot be used")
        if isinstance(node, nodes.Name) and node.name == "self":
            raise TableError(f"the template, line {node.lineno}: self cannot be used")
    for name in (node.name for node in tree.find_all(nodes.Filter)):
        if name not in made.filters or name.startswith("row_"):
            known = ", ".join(sorted(each for each in made.filters if not each.startswith("row_")))
            raise TableError(f"the template: there is no filter {name!r}; there are {known}")
    return _priced(tree)


def _priced(tree: nodes.Template) -> nodes.Template:
    for loop in [*tree.find_all(nodes.For)]:
        loop.iter = _filtered(loop.iter, LOOP)
    _replace_sums(tree)
    return tree


def _replace_sums(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_priced_sum(item) for item in value]
        else:
            setattr(node, field, _priced_sum(value))


def _priced_sum(node: Any) -> Any:
    if not isinstance(node, nodes.Node):
        return node
    _replace_sums(node)
    if isinstance(node, nodes.Concat):
        return _filtered(_listed(node.nodes, node), CONCAT)
    if isinstance(node, nodes.Add):
        return _filtered(_listed([node.left, node.right], node), ADD)
    return node


def _listed(items: list[nodes.Expr], place: nodes.Node) -> nodes.List:
    return nodes.List(items, lineno=place.lineno, environment=place.environment)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class _Environment(SandboxedEnvironment):
    """Values have no attributes but the fields of objects and the parts of dates."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Mapping):
            name = str(argument) if isinstance(argument, int) else argument  # names are text, as in JSON
            if isinstance(name, str) and name in obj:
                return obj[name]
        elif isinstance(obj, (str, list, tuple)):
            if isinstance(argument, slice):
                return obj[argument]
            if isinstance(argument, int) and -len(obj) <= argument < len(obj):
                return obj[argument]
        elif isinstance(argument, str) and (
            (isinstance(obj, LoopContext) and argument in PARTS_OF_LOOPS)
            or (isinstance(obj, (datetime.date, datetime.time)) and argument in PARTS_OF_DATES)
        ):
            return getattr(obj, argument, self.undefined(obj=obj, name=argument))
        return self.undefined(obj=obj, name=str(argument))
