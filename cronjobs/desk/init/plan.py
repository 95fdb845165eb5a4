"""Decide from the surroundings what ``cronjobs init`` writes and prints. All functions here are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from cronjobs.desk.init.app_alembic import ARGUMENT, IMPORT_LINE, EnvFile, with_filter
from cronjobs.desk.init.starter import (
    COMMENT_AT,
    OWN_FILE,
    SCHEMA_FILE,
    starter_handlers,
    starter_schema,
    starter_yaml,
)
from cronjobs.desk.init.surroundings import DOTENV, DatabaseVariable, Surroundings
from cronjobs.engine.config.django_project import APP
from cronjobs.engine.config.sources import DJANGOS

YAML: Final = "cronjobs.yaml"
# The name of the first handler's module. The second name is used if the first is taken.
MODULES: Final = ("jobs", "cron_jobs")

ChoiceName = Literal["app_database", "in_package", "filter_alembic"]


@dataclass(frozen=True)
class Choices:
    """The user's choices. None means that the question has not been asked yet."""

    app_database: bool | None = None
    in_package: bool | None = None
    filter_alembic: bool | None = None

    def without_asking(self, *, edit: bool) -> Choices:
        """Answer each open question as init proposes. *edit*: whether the user allowed edits to existing files."""
        return Choices(
            self.app_database is not False,
            self.in_package is not False,
            edit if self.filter_alembic is None else self.filter_alembic,
        )


@dataclass(frozen=True)
class Question:
    """A question whose proposed answer is yes."""

    about: ChoiceName
    text: str


@dataclass(frozen=True)
class JobsDatabase:
    """The database that the jobs are kept in.

    ``written`` is the value for ``database:``. ``variable`` is the environment variable that holds the URL, or None.
    ``suffix`` is the suffix of a SQLite file's name, or "". ``is_ours`` says whether the database is a SQLite file used
    only for jobs. ``in_shell`` says whether the variable is set only in this shell, and therefore not for cron.
    """

    written: str
    remark: str
    suffix: str = ""
    is_sqlite: bool = True
    is_async: bool = False
    is_ours: bool = False
    in_shell: bool = False
    variable: str | None = None

    @property
    def is_in_reach(self) -> bool:
        """Whether init can open the database without shell variables and without importing Django's settings."""
        return self.is_sqlite and not self.in_shell and self.written != DJANGOS


@dataclass(frozen=True)
class InitPlan:
    """What ``cronjobs init`` writes and prints.

    ``files`` maps the path of each new file below the folder to its text, the YAML first. ``private`` names the files
    to write with mode 0600. ``edits`` maps existing files to their new text. ``ignore`` lists lines for .gitignore.
    ``found`` and ``then`` list lines to print. ``commands`` lists the commands to type next.
    """

    files: Mapping[str, str]
    private: frozenset[str] = frozenset()
    edits: Mapping[Path, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    makes_tables: bool = False
    found: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    then: tuple[str, ...] = ()


def next_question(around: Surroundings, chosen: Choices) -> Question | None:
    """Return the next question, or None if none is left."""
    database = _app_database(around)
    if chosen.app_database is None and database is not None:
        return Question("app_database", f"Keep the jobs in the app's own database ({database.remark})?")
    if chosen.in_package is None and around.package is not None:
        return Question("in_package", f"Write the first handler into the app's package, as {_handlers(around, True)}?")
    if chosen.filter_alembic is None and database is not None and chosen.app_database is not False:
        edits = [_shown(each.path) for each in _without_filter(around) if with_filter(each.source)]
        if edits:
            text = f"Add two lines to {' and '.join(edits)}, so that autogenerate does not drop the tables of cronjobs?"
            return Question("filter_alembic", text)
    return None


def plan(around: Surroundings, chosen: Choices) -> InitPlan:
    app_database = _app_database(around) if chosen.app_database else None
    database = app_database or OWN_DATABASE
    handlers = _handlers(around, bool(chosen.in_package))
    module = _module(around, handlers)
    files = {
        YAML: _yaml(around, database, handlers, module),
        handlers: starter_handlers(),
        SCHEMA_FILE: starter_schema(),
    }
    makes_env = database.in_shell and around.dotenv is None
    if makes_env:
        why = "# Variables for ticks, because cron does not know your shell's variables."
        files[DOTENV] = f"{why}\n#{database.variable}=\n"
    edits, about_alembic = _alembic(around, database, edit=bool(chosen.filter_alembic))
    return InitPlan(
        files,
        private=frozenset({DOTENV}),
        edits=edits,
        ignore=_ignore(around, database, makes_env),
        makes_tables=database.is_in_reach,
        found=(
            *_about_database(around, database),
            *_about_app(around, handlers),
            *about_alembic,
            *_about_crontab(around),
        ),
        commands=_commands(around, database),
        then=_snippet(around, database, module),
    )


# --- the database -----------------------------------------------------------------------------------------------------

OWN_DATABASE: Final = JobsDatabase(
    f"sqlite:///{OWN_FILE}", "beside this file; or postgresql://user@host/name", is_ours=True
)


def _app_database(around: Surroundings) -> JobsDatabase | None:
    """Return the app's own database, or None if unknown.

    If the jobs are kept there, the app can enqueue jobs in its own transactions.
    """
    env_file = around.dotenv is not None and around.dotenv.problem is None
    if around.dotenv is not None and env_file and (found := _the_one(around.dotenv.urls)):
        return _from_variable(found, f"{found.name} in {DOTENV}")
    if (around.dotenv is None or env_file) and (found := _the_one(around.shell)):
        return replace(_from_variable(found, f"{found.name} in this shell"), in_shell=True)
    if around.django is not None:
        file = around.django.sqlite
        remark = f"the database in Django's settings{f', {file}' if file else ''}"
        return JobsDatabase(DJANGOS, remark, Path(file).suffix if file else "", is_sqlite=file is not None)
    return None


def _from_variable(found: DatabaseVariable, remark: str) -> JobsDatabase:
    return JobsDatabase(
        f"${{{found.name}}}", remark, found.suffix, found.is_sqlite, found.is_async, variable=found.name
    )


def _the_one(variables: Sequence[DatabaseVariable]) -> DatabaseVariable | None:
    """Return DATABASE_URL if it is usable, else the only usable variable, else None."""
    usable = [each for each in variables if each.why_not is None]
    return usable[0] if usable and (len(usable) == 1 or usable[0].name == "DATABASE_URL") else None


def _about_database(around: Surroundings, database: JobsDatabase) -> list[str]:
    said = []
    dotenv = around.dotenv
    if dotenv is not None and dotenv.problem is not None:
        said.append(f"{DOTENV} cannot be the env_file: {dotenv.problem}")
    elif dotenv is not None:
        said.append(f"{DOTENV}: handlers get its variables, which cron would not give them")
    if database.in_shell:
        said.append(
            f"{database.remark}: the jobs are kept in that database; for cron, set the variable in {DOTENV}, too"
        )
    elif not database.is_ours:
        said.append(f"{database.remark}: the jobs are kept in that database, beside your own tables")
    elif dotenv is not None or around.shell:
        variables = [*(dotenv.urls if dotenv else ()), *around.shell]
        said += [f"{each.name}: {each.why_not}" for each in variables if each.why_not is not None]
        usable = dict.fromkeys(each.name for each in variables if each.why_not is None)
        if len(usable) > 1 and "DATABASE_URL" not in usable:
            said.append(f"{', '.join(usable)}: if one of these is the jobs' database, name it in {YAML}")
        said.append(f"the jobs are kept in their own file, {OWN_FILE}")
    return said


# --- the app ----------------------------------------------------------------------------------------------------------


def _handlers(around: Surroundings, in_package: bool) -> str:
    package = around.package
    if package is None or not in_package:
        return f"{MODULES[0]}.py"
    free = [name for name in MODULES if name not in package.modules]
    return f"{package.path}/{(free or MODULES)[0]}.py"


def _module(around: Surroundings, handlers: str) -> str:
    root = f"{around.package.root}/" if around.package and around.package.root else ""
    return handlers.removeprefix(root).removesuffix(".py").replace("/", ".")


def _yaml(around: Surroundings, database: JobsDatabase, handlers: str, module: str) -> str:
    changed = {}
    if not database.is_ours:
        changed["database"] = _line("database", database.written, f"the app's own: {database.remark}")
    if database.in_shell or (around.dotenv is not None and around.dotenv.problem is None):
        changed["env_file"] = _line("env_file", DOTENV, "cron does not know your shell's variables")
    if "." in module:
        changed["imports"] = _line("imports", f"[{module}]", "the modules with your @job functions")
    if handlers.startswith("src/"):
        changed["python_path"] = _line("python_path", "[src]", "the folder from which the modules are imported")
    if around.django is not None:
        changed["setup"] = _line("setup", "django.setup", "called before the imports")
        changed["env"] = f"{{DJANGO_SETTINGS_MODULE: {around.django.settings}}}"
    return starter_yaml(timezone=around.timezone, project=around.project, changed=changed, handlers=handlers)


def _line(key: str, value: str, comment: str) -> str:
    return f"{value} ".ljust(COMMENT_AT - len(f"{key}: ")) + f"# {comment}"


def _about_app(around: Surroundings, handlers: str) -> list[str]:
    said = []
    if around.django is not None:
        said.append(f"manage.py: Django is set up with {around.django.settings} before handlers are imported")
        if not around.django.has_cronjobs:
            said.append(
                f'INSTALLED_APPS: to let "manage.py migrate" create the tables, and to see jobs in the admin, add {APP}'
            )
    if around.package is not None and "/" in handlers:
        other = "" if handlers.endswith(f"/{MODULES[0]}.py") else f', because the module name "{MODULES[0]}" is taken'
        said.append(f"{around.package.path} is the app's package: the first handler is {handlers}{other}")
    return said


def _ignore(around: Surroundings, database: JobsDatabase, makes_env: bool) -> tuple[str, ...]:
    if around.unignored is None:
        return ()
    patterns = [f"{OWN_FILE}*" if database.is_ours else f"*{database.suffix}-*"]
    patterns += ["cronjobs.log*", *([DOTENV] if makes_env else [])]
    return tuple(pattern for pattern in patterns if pattern in around.unignored)


def _about_crontab(around: Surroundings) -> list[str]:
    if not around.crontab_lines:
        return []
    lines = f"{around.crontab_lines} line{'' if around.crontab_lines == 1 else 's'}"
    import_it = '"cronjobs crontab import" in a separate folder converts them to schedules'
    wrap_it = '"cronjobs crontab wrap" leaves them to cron, and records each run'
    return [f"your crontab has {lines}: {import_it}; {wrap_it}"]


# --- the app's alembic ------------------------------------------------------------------------------------------------


def _without_filter(around: Surroundings) -> list[EnvFile]:
    return [each for each in around.alembic if not each.filtered]


def _alembic(around: Surroundings, database: JobsDatabase, *, edit: bool) -> tuple[dict[Path, str], list[str]]:
    """Return the edits to env.py files, and lines to print about the files that are not edited."""
    edits, said = {}, []
    for env in _without_filter(around) if not database.is_ours else ():
        edited = with_filter(env.source) if edit else None
        if edited is not None:
            edits[env.path] = edited
            continue
        said += [
            f"{_shown(env.path)}: alembic's autogenerate would drop the tables of cronjobs; add these two lines:",
            f"    {IMPORT_LINE}",
            f"    context.configure(…, {ARGUMENT})   # in each call",
        ]
    return edits, said


def _shown(path: Path) -> str:
    return str(Path(*path.parts[-2:]))


# --- next steps -------------------------------------------------------------------------------------------------------


def _commands(around: Surroundings, database: JobsDatabase) -> tuple[str, ...]:
    commands = []
    if not database.is_sqlite and not around.has_postgresql_driver:
        commands.append("pip install 'cronjobs[postgres]'")
    if database.in_shell:
        # The file's last line may lack a newline, so add one first.
        first = "" if around.dotenv is None else f"echo >> {DOTENV}; "
        commands.append(f'{first}echo "{database.variable}=${database.variable}" >> {DOTENV}')
    if not database.is_in_reach:
        upgrade = "cronjobs db upgrade"
        if database.written == DJANGOS and around.django is not None and around.django.has_cronjobs:
            upgrade = "python manage.py migrate"
        return (*commands, upgrade, "cronjobs check", "cronjobs crontab install")
    return (*commands, "cronjobs check", "cronjobs run-due", "cronjobs crontab install")


def _snippet(around: Surroundings, database: JobsDatabase, module: str) -> tuple[str, ...]:
    """Return example code that enqueues a first job from a web request."""
    names = around.dependencies
    framework = (
        "Django" if around.django else "FastAPI" if "fastapi" in names else "Flask" if "flask" in names else None
    )
    if framework is None:
        return ()
    handler = f"from {module} import hello"
    if database.is_ours:
        return (
            (
                f"then, in a request ({framework}); the jobs have a database of their own, so this is a "
                "separate transaction:"
            ),
            "  from cronjobs import connect",
            f"  {handler}",
            "  with connect() as connection:",
            '      hello.enqueue(connection, name="Ada")',
        )
    head = f"then, in a request, in the same transaction as your own rows ({framework}):"
    if framework == "Django":
        return (
            head,
            "  from django.db import connection, transaction",
            f"  {handler}",
            "  with transaction.atomic():",
            '      hello.enqueue(connection, name="Ada")',
        )
    if framework == "FastAPI" and (database.is_async or names & {"asyncpg", "aiosqlite"}):
        return head, f"  {handler}", '  await hello.enqueue_async(session, name="Ada")   # an AsyncSession; you commit'
    session = "db.session" if "flask-sqlalchemy" in names else "session"
    return head, f"  {handler}", f'  hello.enqueue({session}, name="Ada")   # you commit'
