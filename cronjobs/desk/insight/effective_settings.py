"""Find the effective value of each key and its source, for ``cronjobs config show``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cronjobs.engine.config import environment, keys
from cronjobs.engine.config.import_path import MODULE, variables
from cronjobs.engine.config.reader import ConfigKey, Reader, ReaderOfExtra
from cronjobs.engine.config.reference import as_written, default_of
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.variables import REFERENCE, Variables, read_env_file, text_of
from cronjobs.engine.config.yaml_nodes import Mapping as YamlMapping
from cronjobs.engine.config.yaml_nodes import Node, Scalar, Sequence, decode, parse, with_defaults
from cronjobs.masking import MASK, is_secret_name, mask_urls, without
from cronjobs.model import duration_text

DEFAULT: Final = "default"
FILE: Final = "file"
VARIABLE: Final = "variable"
ENV_FILE: Final = "env_file"
SECRET_FILE: Final = "secret file"  # the value comes from a file named as ${file:…}
COMMAND_LINE: Final = "command line"
DJANGO: Final = "Django"
# The value is invalid, so the default applies. In a named section, the whole entry is ignored instead.
BAD: Final = "bad"

# These variables are not listed by themselves. They are shown as the source of the keys that they set.
_BEFORE_THE_FILE: Final = ("CRONJOBS_CONFIG", "CRONJOBS_DATABASE_URL")
# In these lists, only the bad items are ignored. The good items apply.
_GOOD_ITEMS: Final = ("imports", "python_path", "extras", "around")


class Setting(NamedTuple):
    """One key and its value. If there is no value, ``value`` is None and ``where`` says what that means.

    If there is a value, ``where`` names the file and line, and the variables that the value uses. ``is_written`` is
    False if the value is a default.
    """

    key: str
    value: Any
    source: str
    where: str

    @property
    def is_written(self) -> bool:
        return self.source != DEFAULT


class Overrides(NamedTuple):
    """The command-line options and environment variables that override the file."""

    config: Path | None
    database_url: str | None
    environ: Mapping[str, str]


def effective(settings: Settings, given: Overrides) -> list[Setting]:
    """Return every key that applies to this project, in the order of ``keys.file``, with secrets masked."""
    return list(_Reading(settings, given).all())


class _Reading:
    def __init__(self, settings: Settings, given: Overrides) -> None:
        self._settings, self._given = settings, given
        env_file = settings.contents.get(settings.env_file) if settings.env_file is not None else None
        self._env_file = read_env_file(text_of(env_file))[0] if env_file is not None else {}
        self._variables = Variables({**self._env_file, **given.environ}, settings.folder)
        self._bad = {problem.path for problem in settings.problems}
        # A Django project may have no cronjobs.yaml. Read a missing file as an empty one.
        text = decode(settings.contents.get(settings.file, b""))
        tree = parse(text)[0] if isinstance(text, str) else None
        self._tree = tree if isinstance(tree, YamlMapping) else YamlMapping(1, 1)

    def all(self) -> Iterator[Setting]:
        file, environ = str(self._settings.file), self._given.environ
        if self._given.config is not None:
            yield Setting("--config", file, COMMAND_LINE, "--config")
        else:
            named = bool(environ.get("CRONJOBS_CONFIG"))
            yield Setting("--config", file, *((VARIABLE, "$CRONJOBS_CONFIG") if named else (DEFAULT, "")))
        for name in environment.READ:
            if environ.get(name) and name.startswith("CRONJOBS_") and name not in _BEFORE_THE_FILE:
                yield Setting(f"${name}", environ[name], VARIABLE, f"${name}")
        yield from self._mapping("", keys.file, self._tree)

    def _mapping(self, path: str, reader: Reader | ReaderOfExtra, node: Node | None) -> Iterator[Setting]:
        for name, key in reader.keys.items():
            here = f"{path}.{name}" if path else name
            child = _child(node, name)
            if key.reader.each is not None:
                yield from self._entries(here, key.reader.each, child)
            elif key.reader.keys and (child is not None or key.unset == keys.AS_BELOW):
                yield from self._mapping(here, key.reader, child)
            elif not key.reader.keys:
                yield self._setting(here, reader, name, key, child)

    def _entries(self, path: str, each: Reader, node: Node | None) -> Iterator[Setting]:
        disabled: frozenset[str] = getattr(self._settings, f"disabled_{path}", frozenset())
        for name, (key, value) in node.entries.items() if isinstance(node, YamlMapping) else ():
            here = f"{path}.{name}"
            value = self._with_defaults(path, value)
            if name in disabled or any(f"{bad}.".startswith(f"{here}.") for bad in self._bad):
                yield Setting(here, None, BAD, self._place(key))
            elif isinstance(value, Scalar) and not value.is_null:
                # Some entries are a single value. For example, a limit is a number.
                yield self._from(here, self._plain(value), value)
            else:
                yield from self._mapping(here, each, value)

    def _with_defaults(self, section: str, node: Node) -> Node:
        """Merge ``defaults:`` into an entry, as the reader does."""
        defaults = _child(self._tree, "defaults")
        if section == "schedules":
            shared = _child(defaults, "schedules")
        else:
            shared = _child(defaults, "commands") if section == "job_types" and _child(node, "command") else None
        return with_defaults(node, shared if isinstance(shared, YamlMapping) else None)

    def _setting(
        self, path: str, reader: Reader | ReaderOfExtra, name: str, key: ConfigKey, node: Node | None
    ) -> Setting:
        if path == "database":
            return self._database(node)
        if path == "env":
            return self._env(node)
        if path == "setup" and node is None and self._settings.setup is not None:
            return Setting(path, self._settings.setup, DJANGO, "for a Django project")
        if path in _GOOD_ITEMS and node is not None:
            return self._from(path, [str(item) for item in getattr(self._settings, name)], node)
        if name == "timezone" and node is None:
            return self._from(path, self._settings.timezone, _child(self._tree, "timezone"))
        if node is None or any(f"{bad}.".startswith((f"{path}.", f"{path}[")) for bad in self._bad):
            value = None if key.unset else as_written(default_of(reader, name))
            if path == "run.lease":
                value = duration_text(self._settings.run.lease)
            return (
                Setting(path, value, DEFAULT, key.unset)
                if node is None
                else Setting(path, value, BAD, self._place(node))
            )
        value = MASK if key.reader.secret else self._plain(node)
        if name == "payload":
            value = self._payload(path)
        return self._from(path, _masked_by_name(value) if name == "env" else value, node)

    def _payload(self, path: str) -> Any:
        """Return a schedule's payload.

        If the schedule is invalid, return MASK, since it is unknown which keys to hide.
        """
        schedule = self._settings.schedules.get(path.removeprefix("schedules.").removesuffix(".payload"))
        if schedule is None:
            return MASK
        declared = self._settings.job_types.get(schedule.job)
        return without(schedule.payload, declared.hide if declared is not None else ())

    def _database(self, node: Node | None) -> Setting:
        value = mask_urls(self._settings.database) or None
        if self._given.database_url is not None:
            return Setting("database", value, COMMAND_LINE, "--database-url")
        if self._given.environ.get("CRONJOBS_DATABASE_URL") is not None:
            return Setting("database", value, VARIABLE, "$CRONJOBS_DATABASE_URL")
        if self._settings.by_django:
            places = [] if node is None else [self._place(node)]
            return Setting("database", value, DJANGO, ", ".join([*places, "DATABASES of Django's settings"]))
        return self._from("database", value, node)

    def _env(self, node: Node | None) -> Setting:
        """Return ``env:`` as one value. All values from the env_file are masked."""
        written = set(node.entries) if isinstance(node, YamlMapping) else set()
        applied = variables(self._settings.env, self._given.environ)
        value = {name: text if name in written else MASK for name, text in applied.items()}
        found = self._from("env", _masked_by_name(value), node)
        if applied.get(MODULE) != dict(self._settings.env).get(MODULE):
            found = found._replace(source=VARIABLE, where=f"{found.where}, ${MODULE}")
        if value.keys() <= written:
            return found
        file = str(self._settings.env_file and self._settings.env_file.name)
        return Setting("env", found.value, found.source if written else ENV_FILE, ", ".join({found.where, file} - {""}))

    def _from(self, path: str, value: Any, node: Node | None) -> Setting:
        """Make a setting whose source and place come from *node*."""
        if node is None:
            return Setting(path, value, DEFAULT, "")
        came_in = dict.fromkeys(origin for text in _texts(node) for origin in self._references(text))
        source = next((source for source, _ in came_in), FILE)
        return Setting(path, value, source, ", ".join([self._place(node), *(shown for _, shown in came_in)]))

    def _references(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the source and the name of each ``${…}`` in *text*, unless its default after ":-" is used."""
        for found in REFERENCE.finditer(text):
            if found["file"]:
                yield SECRET_FILE, found["file"]
            elif found["name"] in self._given.environ:
                yield VARIABLE, f"${found['name']}"
            elif found["name"] in self._env_file and self._settings.env_file is not None:
                yield ENV_FILE, f"${found['name']} in {self._settings.env_file.name}"

    def _place(self, node: Node) -> str:
        return f"{self._settings.file.name}:{node.line}"

    def _plain(self, node: Node) -> Any:
        match node:
            case Scalar():
                return None if node.is_null else self._variables.fill(node.text)[0]
            case Sequence():
                return [self._plain(item) for item in node.items]
        return {name: self._plain(value) for name, (_, value) in node.entries.items()}


def _child(node: Node | None, name: str) -> Node | None:
    if not isinstance(node, YamlMapping) or name not in node.entries:
        return None
    return node.entries[name][1]


def _texts(node: Node) -> Iterator[str]:
    match node:
        case Scalar():
            yield node.text
        case Sequence():
            for item in node.items:
                yield from _texts(item)
        case YamlMapping():
            for _, value in node.entries.values():
                yield from _texts(value)


def _masked_by_name(variables: Any) -> Any:
    return {name: MASK if is_secret_name(name) else value for name, value in (variables or {}).items()}
