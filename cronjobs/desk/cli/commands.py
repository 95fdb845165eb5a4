"""Declare commands in tables, and adapt typer, so that a module is imported only when its command is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cronjobs.errors import UsageError
from cronjobs.installed import needed
from cronjobs.text import is_utf8, nearest

MARKUP: Final = "markdown"


class PlainCommand(TyperCommand):
    """A command whose help shows no type after a flag."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if given := getattr(error, "option_name", None):
                self._mend_the_hint(error, str(given).lstrip("-"))
            raise

    def _mend_the_hint(self, error: Any, given: str) -> None:
        """Drop suggestions that are not close to what the user typed, such as --help for --schedule.

        If the user typed an argument as an option, the error explains that.
        """
        if getattr(error, "possibilities", None):
            error.possibilities = [each for each in error.possibilities if nearest(given, [each.lstrip("-")], 0.7)]
        for each in self.params:
            if each.param_type_name == "argument" and given in (each.name, str(each.metavar).lower()):
                error.message += f": write the {given} without --{given}"


class PlainGroup(TyperGroup):
    """A group whose help shows no type after a flag."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


class Commands(typer.Typer):
    """A group of subcommands of ``cronjobs``. The subcommands come from ``@app.command`` or from the table of *cls*."""

    def __init__(self, help: str, cls: type[PlainGroup] = PlainGroup) -> None:  # noqa: A002 typer's word
        super().__init__(cls=cls, help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=MARKUP)
        self.callback()(_no_options)  # without a callback, typer turns a group of one command into that command

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=PlainCommand, **options)
        return lambda command: register(spread(command))


def _no_options() -> None:
    pass


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Adapt *command* for typer: each field of a dataclass parameter, such as ``Source``, becomes an option."""
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in own.parameters.items() if is_dataclass(each.annotation)
    }
    parameters = [
        part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in own.parameters.items()
        for part in (inspect.signature(groups[name], eval_str=True).parameters.values() if name in groups else [each])
    ]

    @wraps(command)
    def called(**given: Any) -> None:
        for name, value in given.items():
            # Python decodes bytes that are not UTF-8 as surrogates, which no database can store.
            if isinstance(value, str) and not is_utf8(value):
                raise UsageError(f"{name} is not UTF-8")
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


class CommandRow(NamedTuple):
    """One command in the table of a group. ``where`` is "module:function", or "module:app" for a group.

    A module without a dot in its name is in this folder. A name with a dot is the module's full name.

    ``help`` repeats the first line of the function's docstring, or the group's help. A test compares the two.
    """

    where: str
    help: str
    panel: str | None = None
    epilog: str | None = None


class Listed(TyperCommand):
    """A placeholder for a command in lists, suggestions and completions.

    It imports the command's module when the user calls the command.
    """

    def __init__(self, name: str, row: CommandRow) -> None:
        super().__init__(name, help=row.help, rich_help_panel=row.panel)
        self.row = row
        self._loaded: Any = None

    def load(self) -> Any:
        """Import the command's module and return the command."""
        if self._loaded is None:
            module, _, attribute = self.row.where.partition(":")
            there = needed(module, f'"{self.name}"') if "." in module else import_module(f"cronjobs.desk.cli.{module}")
            found = getattr(there, attribute)
            if not isinstance(found, typer.Typer):
                one = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
                one.command(self.name, cls=PlainCommand, epilog=self.row.epilog)(spread(found))
                found = one
            self._loaded = get_command(found)
            self._loaded.name = self.name
        return self._loaded


class LazyGroup(PlainGroup):
    """A group whose commands come from a table."""

    table: ClassVar[Mapping[str, CommandRow]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: Listed(name, row) for name, row in self.table.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            name, found, rest = super().resolve_command(ctx, args)
        except Exception as error:
            if there := self._groups_with(args[0]):
                error.message = f'No such command "{args[0]}": write {" or ".join(there)}'  # type: ignore[attr-defined]
            raise
        return name, found.load() if isinstance(found, Listed) else found, rest

    def _groups_with(self, name: str) -> list[str]:
        """Return the subcommands called *name*, as the user types them ("cronjobs jobs list"), for a suggestion."""
        return [
            f'"cronjobs {group} {name}"'
            for group, row in self.table.items()
            if row.where.endswith(":app")
            and "." not in row.where
            and name in getattr(Listed(group, row).load(), "commands", ())
        ]
