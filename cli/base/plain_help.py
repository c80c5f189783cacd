"""Typer with plain help: values have plain names, and a group without a command shows its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:

    class _Base(TyperCommand): ...
else:
    _Base = object

F = TypeVar("F", bound=Callable[..., Any])
NAMES = {"bool": "", "int": "N", "float": "N", "str": "TEXT", "list[str]": "TEXT", "file": "PATH"}


class _PlainParams(_Base):
    """Names the values of a command's options and arguments where Typer would give Python's types."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            if isinstance(param, TyperArgument):  # it has a name of its own
                param.display_type_rich = _nothing  # type: ignore[method-assign]
            elif isinstance(param, TyperOption) and param.metavar is None:
                kind = param.display_type(ctx).strip("<>").removesuffix(" range")
                param.metavar = NAMES.get(kind, kind if "|" in kind else kind.upper())
        return params


def _nothing(ctx: Any) -> str:
    del ctx
    return ""


class _Command(_PlainParams, TyperCommand):
    pass


class _Group(_PlainParams, TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not self.invoke_without_command:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """A group of commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, cls=_Command, **options)
