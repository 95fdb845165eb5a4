"""Read an app's files to find its package, dependencies and Django settings. None of the app's code is run."""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cronjobs.engine.config.django_project import APP
from cronjobs.engine.host.files import names_in, read_text

# Packages that are not the app: tests, tools, and names that would clash with ours.
NOT_THE_APP: Final = frozenset(
    (
        *("alembic", "migrations", "cronjobs", "jobs", "docs", "doc", "example", "examples", "static", "templates"),
        *("benchmarks", "bin", "build", "dist", "env", "node_modules", "scripts", "test", "tests", "tools", "venv"),
    )
)
# A folder without __init__.py counts as an app if it has one of these files.
ENTRY_POINTS: Final = frozenset({"main.py", "app.py", "asgi.py", "wsgi.py"})


@dataclass(frozen=True)
class AppPackage:
    """The app's package.

    ``root`` is the folder to import from, "" or "src". ``name`` is the package's path below ``root``. ``modules`` lists
    the names that the package already contains.
    """

    name: str
    root: str
    modules: frozenset[str]

    @property
    def path(self) -> str:
        return f"{self.root}/{self.name}" if self.root else self.name


@dataclass(frozen=True)
class DjangoProject:
    """What the files of a Django project show about it.

    ``settings`` is the settings module given in manage.py. ``sqlite`` is the SQLite file beside manage.py that the
    settings use, or None. ``timezone`` is TIME_ZONE in the settings, or None. ``app`` is the folder of the first
    INSTALLED_APPS entry inside this project, or None. ``has_cronjobs`` is whether INSTALLED_APPS lists cronjobs' own
    app.
    """

    settings: str
    sqlite: str | None = None
    timezone: str | None = None
    app: str | None = None
    has_cronjobs: bool = False


def django_project(folder: Path) -> DjangoProject | None:
    found = _SETTINGS.search(read_text(folder / "manage.py"))
    if found is None:
        return None
    texts = list(_settings_texts(folder, found[1]))
    written = "\n".join(texts)
    sqlite = _SQLITE_FILE.search(written) if "backends.sqlite3" in written else None
    zones = _TIME_ZONE.findall(written)
    names = [name for text in texts for name in _installed_apps(text)]
    apps = (_app_folder(folder, name) for name in names)
    return DjangoProject(
        found[1],
        sqlite[1] if sqlite else None,
        zones[-1] if zones else None,
        next(filter(None, apps), None),
        any(name == APP or name.startswith(f"{APP}.") for name in names),
    )


_SETTINGS: Final = re.compile(r"""DJANGO_SETTINGS_MODULE["']\s*,\s*["']([A-Za-z_][\w.]*)["']""")
# "django-admin startproject" writes the SQLite file's name in this form.
_SQLITE_FILE: Final = re.compile(r"""["']NAME["']\s*:\s*BASE_DIR\s*/\s*["']([\w.-]+)["']""")
_TIME_ZONE: Final = re.compile(r"""^TIME_ZONE\s*=\s*["']([\w/+-]+)["']""", re.MULTILINE)
_BASE_SETTINGS: Final = re.compile(r"^from \.(\w+) import \*", re.MULTILINE)


def _settings_texts(folder: Path, module: str) -> Iterator[str]:
    """Yield the sources of the modules that the settings import with ``*``, then the source of the settings."""
    file = folder / (module.replace(".", "/") + ".py")
    text = read_text(file)
    if not text:
        file = file.with_suffix("") / "__init__.py"
        text = read_text(file)
    for name in _BASE_SETTINGS.findall(text):
        yield read_text(file.parent / f"{name}.py")
    yield text


def _installed_apps(settings: str) -> Iterator[str]:
    """Yield the entries of INSTALLED_APPS, and of the lists that it is built from, such as LOCAL_APPS."""
    try:
        statements = ast.parse(settings).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in statements:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AugAssign(target=ast.Name(id=name), value=value)
            ) if name.endswith("_APPS"):
                found = [each for each in ast.walk(value) if isinstance(each, ast.Constant)]
                for each in sorted(found, key=lambda each: (each.lineno, each.col_offset)):
                    if isinstance(each.value, str):
                        yield each.value


def _app_folder(folder: Path, app: str) -> str | None:
    """Return the folder of an app listed as "shop" or "shop.apps.ShopConfig", or None if the app is not in *folder*."""
    parts = app.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    paths = ("/".join(parts[:length]) for length in (len(parts), len(parts) - 2) if length > 0)
    return next((path for path in paths if _has_python(folder / path)), None)


def app_package(folder: Path, django: DjangoProject | None) -> AppPackage | None:
    """Return the app's package, or None if there is no package, or if several could be the app's."""
    if django is not None and django.app is not None:
        return _package(folder, "", django.app)
    named = [django.settings.partition(".")[0]] if django else []
    named += [re.sub(r"[-.\s]+", "_", name).lower() for name in project_names(folder)]
    for root in ("src", ""):
        for name in named:
            if name.isidentifier() and _has_python(folder / root / name):
                return _package(folder, root, name)
    for root in ("src", ""):
        below = [name for name in names_in(folder / root) if name.isidentifier() and name not in NOT_THE_APP]
        packages = [name for name in below if "__init__.py" in names_in(folder / root / name)]
        if not packages:
            packages = [name for name in below if not ENTRY_POINTS.isdisjoint(names_in(folder / root / name))]
        if len(packages) == 1:
            return _package(folder, root, packages[0])
        if packages:
            return None
    return None


def _package(folder: Path, root: str, name: str) -> AppPackage:
    return AppPackage(name, root, frozenset(each.removesuffix(".py") for each in names_in(folder / root / name)))


def _has_python(folder: Path) -> bool:
    return any(name.endswith(".py") for name in names_in(folder))


# --- dependencies -----------------------------------------------------------------------------------------------------


def dependencies(folder: Path) -> frozenset[str]:
    """Return the names of the distributions that the app requires, normalized as on PyPI.

    If no file lists any, return the names of the modules that the app's files import.
    """
    project = _pyproject(folder)
    lines = [*_texts(_at(project, "project", "dependencies"))]
    for groups in (_at(project, "project", "optional-dependencies"), _at(project, "dependency-groups")):
        for group in groups.values() if isinstance(groups, dict) else ():
            lines += _texts(group)
    for table in (
        _at(project, "tool", "poetry", "dependencies"),
        _at(_toml(read_text(folder / "Pipfile")), "packages"),
    ):
        lines += list(table) if isinstance(table, dict) else []
    lines += _setup_cfg(folder, "options", "install_requires").splitlines()
    for file in (*sorted(folder.glob("requirements*.txt")), *sorted(folder.glob("requirements/*.txt"))):
        lines += read_text(file).splitlines()
    names = [found[1] for line in lines if (found := _REQUIREMENT.match(line))] or _imported(folder)
    return frozenset(re.sub(r"[-_.]+", "-", name).lower() for name in names)


def _imported(folder: Path) -> list[str]:
    """Return the modules imported by files in *folder* and in the folders directly below it."""
    folders = [folder, *(folder / name for name in names_in(folder) if name.isidentifier() and name not in NOT_THE_APP)]
    files = [each / name for each in folders for name in names_in(each) if name.endswith(".py")]
    return [name for file in files[:200] for name in _IMPORT.findall(read_text(file))]


_IMPORT: Final = re.compile(r"^(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def project_names(folder: Path) -> Iterator[str]:
    """Yield the project's names in the packaging files. The last one may be empty."""
    project = _pyproject(folder)
    for name in (_at(project, "project", "name"), _at(project, "tool", "poetry", "name")):
        if isinstance(name, str):
            yield name
    yield _setup_cfg(folder, "metadata", "name")


def _pyproject(folder: Path) -> dict[str, Any]:
    return _toml(read_text(folder / "pyproject.toml"))


def _toml(text: str) -> dict[str, Any]:
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        return tomllib.loads(text)
    return {}


def _at(table: Any, *keys: str) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _setup_cfg(folder: Path, section: str, key: str) -> str:
    parser = configparser.RawConfigParser(strict=False)
    with suppress(configparser.Error):
        parser.read_string(read_text(folder / "setup.cfg"))
        return parser.get(section, key, fallback="")
    return ""
