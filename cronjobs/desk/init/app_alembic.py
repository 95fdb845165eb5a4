"""Find the env.py of the app's own alembic, and edit it so that autogenerate ignores our tables.

Autogenerate writes ``drop_table`` for each table that the app's models do not declare. So it would drop all our tables.
"""

from __future__ import annotations

import ast
import configparser
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cronjobs.engine.host.files import names_in, read_text

LEVELS_UP: Final = 3
SKIPPED: Final = frozenset({"node_modules", "venv", "__pycache__", "site-packages"})

# The folders that contain our own migrations, in a wheel and in a clone.
_OURS: Final = frozenset(above / "alembic" for above in Path(__file__).resolve().parents[2:4])

IMPORT_LINE: Final = "from cronjobs.autogenerate import include_object"
ARGUMENT: Final = "include_object=include_object"
HOW_TO_FILTER: Final = f"{IMPORT_LINE}, and pass {ARGUMENT} to context.configure"


@dataclass(frozen=True)
class EnvFile:
    """An env.py of the app's alembic. ``filtered``: whether the file makes autogenerate ignore our tables."""

    path: Path
    source: str

    @property
    def filtered(self) -> bool:
        return filters(self.source)

    @property
    def compares_schemas(self) -> bool:
        """Whether autogenerate also reads schemas other than the default one."""
        return "include_schemas" in self.source


def env_files(folder: Path) -> list[EnvFile]:
    """Find each env.py of an app's alembic near *folder*, sorted by path."""
    found = {}
    for script_folder in _script_folders(folder):
        path = script_folder / "env.py"
        if path.name in names_in(path.parent) and path.parent.resolve() not in _OURS:
            found[path] = EnvFile(path, read_text(path))
    return [found[path] for path in sorted(found)]


def unfiltered(folder: Path, *, schema: str | None) -> str | None:
    """Return a warning that names the env.py files near *folder* that have no filter, or None if there are none.

    *schema* is our tables' own schema, or None. Autogenerate reads that schema only with include_schemas.
    """
    found = [
        str(each.path) for each in env_files(folder) if not each.filtered and (schema is None or each.compares_schemas)
    ]
    if not found:
        return None
    return (
        f"{', '.join(found)}: if this alembic migrates the jobs database, its autogenerate would drop the tables of "
        f"cronjobs. To prevent that, add {HOW_TO_FILTER}"
    )


def filters(source: str) -> bool:
    """Return whether an env.py passes alembic a filter and mentions cronjobs outside comments."""
    tree = _parsed(source)
    if tree is None:
        return False
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    names |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = any("cronjobs" in str(name) for name in names | modules)
    return ours and bool(names & {"include_object", "include_name"})


def with_filter(source: str) -> str | None:
    """Return *source* with our filter in each ``context.configure(…)``, or None if *source* cannot be edited safely.

    We edit only code that looks like the templates of alembic and Flask-Migrate. It must have ``from alembic import
    context`` at the top. Each call must name its ``target_metadata``, have no filter yet, and pass nothing by ``**``
    except Flask-Migrate's ``configure_args``.
    """
    tree = _parsed(source)
    if tree is None or "include_object" in source or "include_name" in source:
        return None
    # U+FFFD stands for bytes of the file that are not UTF-8. An edit would replace these bytes with the character.
    if "\ufffd" in source:
        return None
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and _imports_context(node)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _configures(node)]
    if len(imports) != 1 or not calls:
        return None
    insertions: list[tuple[ast.expr | ast.stmt, str]] = [(imports[0], f"\n{IMPORT_LINE}")]
    for call in calls:
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if call.args or "target_metadata" not in given:
            return None
        if None not in given:
            insertions.append((given["target_metadata"], f", {ARGUMENT}"))
        elif (assignment := _configure_args(tree, given[None])) is not None:
            name, indent = ast.unparse(given[None]), " " * assignment.col_offset
            insertions.append((assignment, f'\n{indent}{name}.setdefault("include_object", include_object)'))
        else:
            return None
    lines = source.replace("\r\n", "\n").split("\n")
    # Insert from the end, so that earlier positions stay valid.
    for node, text in sorted(insertions, key=lambda each: _end(each[0]), reverse=True):
        _insert(lines, node, text)
    edited = ("\r\n" if "\r\n" in source else "\n").join("\n".join(lines).split("\n"))
    return edited if filters(edited) else None


def _imports_context(node: ast.ImportFrom) -> bool:
    return node.module == "alembic" and any(alias.name == "context" and not alias.asname for alias in node.names)


def _configure_args(tree: ast.Module, value: ast.expr) -> ast.Assign | None:
    """Return the statement that assigns Flask-Migrate's ``configure_args`` to the name *value*, or None."""
    if not isinstance(value, ast.Name):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == value.id for target in node.targets)
    ]
    ours = len(found) == 1 and isinstance(found[0].value, ast.Attribute) and found[0].value.attr == "configure_args"
    return found[0] if ours else None


def _insert(lines: list[str], behind: ast.expr | ast.stmt, text: str) -> None:
    row, column = _end(behind)
    line = lines[row - 1].encode()
    lines[row - 1] = (line[:column] + text.encode() + line[column:]).decode()


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return the line and byte column of a node's end."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _configures(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "configure"
        and isinstance(function.value, ast.Name)
        and function.value.id == "context"
    )


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# --- locating env.py --------------------------------------------------------------------------------------------------


def _script_folders(folder: Path) -> Iterator[Path]:
    """Yield the migrations folders of *folder*, its parents up to the repository's root, and its direct subfolders."""
    around = [folder, *list(folder.parents)[:LEVELS_UP]]
    for place in around:
        yield from _named_in(place)
        if ".git" in names_in(place):
            break
    for name in names_in(folder):
        if not name.startswith(".") and name not in SKIPPED:
            yield from _named_in(folder / name)


def _named_in(folder: Path) -> Iterator[Path]:
    """Yield the migrations folders given in alembic.ini and pyproject.toml."""
    there = names_in(folder)
    if "alembic.ini" in there:
        parser = configparser.RawConfigParser(strict=False)
        # Flask-Migrate keeps alembic.ini beside env.py, and gives no folder in it.
        default = "." if "env.py" in there else "alembic"
        try:
            parser.read_string(read_text(folder / "alembic.ini"))
            written = parser.get("alembic", "script_location", fallback=default)
        except configparser.Error:
            written = default
        yield _script_folder(folder, written)
    if "[tool.alembic" in (text := read_text(folder / "pyproject.toml")):
        try:
            table = tomllib.loads(text)["tool"]["alembic"]
            yield _script_folder(folder, str(table.get("script_location", "alembic")))
        except (tomllib.TOMLDecodeError, RecursionError, KeyError, TypeError, AttributeError):
            return


def _script_folder(folder: Path, written: str) -> Path:
    return folder / written.replace("%(here)s", str(folder))
