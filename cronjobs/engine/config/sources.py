"""Read the files that make up a configuration, and find out which database it uses."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cronjobs.engine.config import fields
from cronjobs.engine.config.reader import FieldError, Reading, ReportedError, UnsetError, shown
from cronjobs.engine.config.variables import read_env_file, text_of
from cronjobs.engine.config.yaml_nodes import MAX_BYTES, Node, Scalar, decode, parse
from cronjobs.engine.config.yaml_nodes import Mapping as YamlMapping
from cronjobs.engine.host.files import open_regular
from cronjobs.engine.rules.database_url import url_fault
from cronjobs.errors import Problem

# The value "database: django" means that the database is taken from Django's settings.
DJANGOS: Final = "django"
SALVAGED: Final = ({"env", "alerts", "run"}, {"alerts", "run"}, {"env"}, set[str]())
KEPT: Final = frozenset({"database", "schema", "env_file", "project", "environment", "timezone"})


def read_file(file: Path, contents: dict[Path, bytes]) -> tuple[YamlMapping | None, list[Problem]]:
    """Return the tree of *file* and its problems.

    If the file has problems, but part of it can still be checked, returns both. Adds the content of the file to
    *contents*.
    """

    def problem(message: str, line: int = 0, column: int = 0) -> Problem:
        return Problem(str(file), line, column, "", message)

    try:
        content = _content(file)
        contents[file.absolute()] = content
        text = decode(content)
    except FileNotFoundError:
        how = 'run "cronjobs init" to write one, or name yours with --config (config= in an app) or $CRONJOBS_CONFIG'
        return None, [problem(f"there is no such file: {how}")]
    # A ValueError means that the file's name contains a NUL.
    except (OSError, ValueError) as error:
        return None, [problem(f"the file cannot be read: {getattr(error, 'strerror', None) or 'invalid file name'}")]
    if not isinstance(text, str):
        return None, [problem(text.message, text.line, text.column)]
    tree, flaws = parse(text)
    problems = [problem(flaw.message, flaw.line, flaw.column) for flaw in flaws]
    if isinstance(tree, YamlMapping):
        return tree, problems
    if problems:
        return None, problems
    if tree is None or (isinstance(tree, Scalar) and tree.is_null):
        return None, [problem('the file is empty: run "cronjobs init" in an empty folder to see what belongs in it')]
    return None, [problem('the file must be a mapping: begin with a key such as "database:"', tree.line, tree.column)]


def _content(file: Path) -> bytes:
    """Return the content of a file, or of a pipe that has a writer, such as ``<(…)``."""
    # Without O_NONBLOCK, opening a FIFO that has no writer would block forever.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        first = b""
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            # BlockingIOError: a writer has the pipe open, but has written nothing yet.
            with suppress(BlockingIOError):
                first = os.read(descriptor, 1)
                if not first:
                    raise OSError(errno.EINVAL, "this is a pipe that nobody writes to")
        os.set_blocking(descriptor, True)
        return first + opened.read(MAX_BYTES + 1)


def salvaged(content: bytes | None) -> YamlMapping:
    """Return the keys that identify the database, even though the file with this *content* is not valid YAML.

    This reads only lines that begin with a key in KEPT, and as many as possible of these sections: ``env:``, which may
    name Django's settings, and ``alerts:`` and ``run:``, which may say how to report that no tick can use the file. The
    result is empty if one of these keys is repeated, or if these lines are not valid YAML either.
    """
    text = decode(content or b"")
    if isinstance(text, str):
        for sections in SALVAGED:
            tree, flaws = parse("\n".join(_lines_of(sections, text)))
            if isinstance(tree, YamlMapping) and not (flaws or tree.duplicates):
                return tree
    return YamlMapping(1, 1)


def _lines_of(sections: Collection[str], text: str) -> Iterator[str]:
    """Yield the lines with a key in KEPT, and those of *sections*. Other lines become empty, to keep line numbers."""
    key = ""
    for line in text.splitlines():
        is_below = line.startswith((" ", "\t", "#")) or not line
        if not is_below:
            key = line.partition(":")[0]
        yield line if key in sections or (key in KEPT and not is_below) else ""


def read_env(reading: Reading, tree: YamlMapping) -> Mapping[str, str] | None:
    """Return the variables of the file's ``env_file``.

    These variables are read before anything else, because any value in the file may refer to them. None means that the
    env_file is bad, and that its problem has been reported.
    """
    if "env_file" not in tree.entries:
        return {}
    before = len(reading.problems)
    try:
        variables: Mapping[str, str] = reading.read(_variables_of_file, tree.entries["env_file"][1], "env_file")
    except ReportedError:
        return None
    return variables if len(reading.problems) == before else None


def _variables_of_file(reading: Reading, node: Node, path: str) -> Mapping[str, str]:
    file = fields.path_beside_file(reading, node, path)
    try:
        with open(open_regular(file, os.O_RDONLY), "rb") as opened:
            content = opened.read(MAX_BYTES)
        variables, wrong = read_env_file(text_of(content))
    except OSError as error:
        raise FieldError(f"{shown(node)} cannot be read: {error.strerror} ({file})") from None
    except ValueError:
        raise FieldError(f"{shown(node)} is not UTF-8 text") from None
    reading.variables.files[file] = content
    reading.problems += [Problem(str(file), line, 1, "", message) for line, message in wrong]
    return variables


def is_shadowed(reading: Reading, tree: YamlMapping, python_path: tuple[Path, ...]) -> bool:
    """Report each file or folder that Python would import instead of this package. Return whether there is one."""
    found = False
    for folder in (reading.folder, *python_path):
        if (name := _shadow(folder)) is None:
            continue
        found = True
        message = "rename {}: it would be imported instead of the cronjobs package"
        if folder == reading.folder:
            reading.problems.append(Problem(reading.file, 0, 0, "", message.format(name)))
        else:
            reading.report(tree.entries["python_path"][1], "python_path", message.format(folder / name))
    return found


def _shadow(folder: Path) -> str | None:
    """Return the name of a file or folder in *folder* that Python would import instead of our package, or None.

    Ignores a folder without __init__.py, and a folder that contains our own files, because that is our package.
    """
    package = folder / "cronjobs"
    if (package / "__init__.py").is_file() and not (package / "autogenerate.py").is_file():
        return "cronjobs/"
    return "cronjobs.py" if (folder / "cronjobs.py").is_file() else None


def database_of(reading: Reading, node: Node | None, override: tuple[str, str | None], *, need: bool) -> str | None:
    """Return the URL of the database, or "" if the file gives none and the command needs none.

    Return None after reporting a database that cannot be used. *override* is the source and the URL of a database that
    takes precedence over the one in the file; without such a database, its URL is None.
    """
    origin, url = override
    try:
        if url is not None:
            return checked_url(url, reading.folder)
        if node is None:
            if need:
                raise FieldError(
                    'no database is set: add "database: sqlite:///cronjobs.db" or "database: ${DATABASE_URL}"'
                )
            return ""
        return checked_url(reading.text(node), reading.folder)
    except UnsetError as unset:
        if not need:
            reading.database_unset = str(unset)
            return ""
        message = str(unset)
    except FieldError as bad:
        message = f"{origin}: {bad}" if url is not None else str(bad)
    if url is None and node is not None:
        reading.report(node, "database", message)
    else:
        reading.problems.append(Problem(reading.file, 0, 0, "", message))
    return None


_NOT_IN_URLS: Final = re.compile(r"[?\ud800-\udfff]|%[0-9A-Fa-f]{2}")


def checked_url(url: str, folder: Path) -> str:
    """Return *url* with the path of a SQLite file made absolute.

    Raises FieldError if the URL cannot be used. The message never quotes the URL, because a URL may contain a password.

    The word ``django`` is returned unchanged.
    """
    if url == DJANGOS:
        return url
    if fault := url_fault(url):
        raise FieldError(fault)
    scheme, _, rest = url.partition("://")
    if not scheme.startswith("sqlite"):
        return url
    path, question, options = rest.partition("?")
    name = path[1:]
    if not name.startswith("/") and _NOT_IN_URLS.search(str(folder)):
        raise FieldError(
            'the folder\'s path has a "?", a "%" with two digits, or bytes that are not UTF-8. In a URL, these mean '
            "something else, so the database file would be in another place. Choose another folder"
        )
    return f"{scheme}:///{folder / name}{question}{options}"
