"""Write docs/reference/ from the code, or with --check compare it: exit 1, and a line for each page that differs.

python docs/generate.py [--check]
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, NamedTuple

import typer

import cronjobs.events as events_module
from cronjobs.desk.cli.commands import CommandRow, LazyGroup, spread
from cronjobs.desk.cli.main import Root, root
from cronjobs.engine.config import environment
from cronjobs.engine.config.reference import Section, sections

REFERENCE = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Made by docs/generate.py from the code. Do not edit: run `python docs/generate.py`. -->"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- configuration.md -------------------------------------------------------------------------------------------------

CONFIGURATION = """# Every key of cronjobs.yaml

Keep the file next to your code. Durations have a unit: `55s`, `10m`, `24h`, `7d`, `1h30m`. Sizes: `512MiB`, `2GiB`.
In every value, cronjobs substitutes `${NAME}`, `${NAME:-default}` and `${file:/run/secrets/x}`; write `$${` for a plain
`${`. A relative path starts at the folder of the file.

A bad entry disables only itself and what depends on it. `cronjobs check` lists what is wrong and what is disabled. An
unknown key that resembles a known key counts as a bad value of that known key. Any other unknown key has no effect.

| what is bad | what is disabled |
| --- | --- |
| `timezone` | schedules with `cron:` and no time zone of their own |
| `defaults`, `defaults.schedules` | all schedules |
| `defaults`, `defaults.commands` | all entries with a command |
| `limits` | all jobs with a concurrency_key: they wait |
| `project`, `environment`, `env_file`, `database`, `schema`, `job_types`, `schedules` | everything (exit code 3) |

`cronjobs config show` prints the values in effect and where each one comes from. `cronjobs schema` prints what this
page says in the form of a JSON Schema, for editors. In the *default* column, code is a literal value."""


def _is_value(section: Section, name: str) -> bool:
    return not next(row for row in section.rows if row.name == name).key.unset


def configuration() -> str:
    parts = [CONFIGURATION]
    for section in sections():
        title = "The file" if section.paths == ("",) else " and ".join(code(path) for path in section.paths)
        rows = (
            (
                code(row.name),
                cell(row.key.sentence),  # second: a narrow screen shows two columns, and scrolls to the others
                cell(row.key.reader.words),
                code(row.default) if _is_value(section, row.name) else cell(row.default),
                code(row.key.example),
            )
            for row in section.rows
        )
        parts.append(f"## {title}\n\n{table(('key', 'what it decides', 'type', 'default', 'example'), rows)}")
    parts.append(
        "## Environment variables\n\ncronjobs reads these variables:\n\n"
        + table(("variable", "what it decides"), ((code(n), cell(s)) for n, s in environment.READ.items()))
        + "\n\ncronjobs sets these variables for commands (`command:`), where they apply:\n\n"
        + table(("variable", "what it holds"), ((code(n), cell(s)) for n, s in environment.GIVEN.items()))
    )
    return "\n\n".join(parts)


# --- commands.md ------------------------------------------------------------------------------------------------------

COMMANDS = """# Every command

`--config` and `--database-url` may come before or after the command's name. The other options in this list come before
it. `-h` after a command prints what this page says about the command. Exit codes that mean the same everywhere: 0 done,
2 usage, 3 configuration, 4 database, 70 an internal error in cronjobs.

`cronjobs --install-completion` makes your shell (bash, zsh, fish) complete commands and options;
`cronjobs --show-completion` prints what it would add."""


class Documented(NamedTuple):
    """A command as it is declared. ``function`` None: a group of commands."""

    path: str
    function: Callable[..., Any] | None
    help: str
    epilog: str | None


def all_commands(table: dict[str, CommandRow] | None = None, before: str = "") -> Iterator[Documented]:
    """Each command and group of commands, as the tables of ``cronjobs.desk.cli`` have them."""
    for name, row in (Root.table if table is None else table).items():
        module, _, attribute = row.where.partition(":")
        found = getattr(import_module(module if "." in module else f"cronjobs.desk.cli.{module}"), attribute)
        path = f"{before}{name}"
        if not isinstance(found, typer.Typer):
            yield Documented(path, spread(found), inspect.cleandoc(found.__doc__ or ""), row.epilog)
            continue
        yield Documented(path, None, row.help, row.epilog)
        group = found.info.cls
        if isinstance(group, type) and issubclass(group, LazyGroup):
            yield from all_commands(dict(group.table), f"{path} ")
        for one in found.registered_commands:
            function = one.callback
            assert function is not None
            name_below = one.name or function.__name__
            yield Documented(
                f"{path} {name_below}", function, inspect.cleandoc(one.help or function.__doc__ or ""), one.epilog
            )


class Parameter(NamedTuple):
    """An option or an argument: ``names`` as typed, with what follows them."""

    names: tuple[str, ...]
    value: str
    is_option: bool
    default: str
    help: str


def parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    """What a command takes, from its signature, as typer reads it."""
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, *told = typing.get_args(parameter.annotation) or (parameter.annotation,)
        info = next((each for each in told if type(each).__name__ in ("OptionInfo", "ArgumentInfo")), None)
        if info is None:  # the context
            continue
        is_option = type(info).__name__ == "OptionInfo"
        one = next((each for each in typing.get_args(kind) if each is not type(None)), kind)
        one = one if isinstance(kind, UnionType) or typing.get_origin(kind) is not list else kind
        many = typing.get_origin(one) is list
        inner = typing.get_args(one)[0] if many else one
        # In Annotated, the first of Option("-n", "--count") arrives as its default.
        given = tuple(word for word in (info.default, *(info.param_decls or ())) if str(word).startswith("-"))
        long = "--" + name.strip("_").replace("_", "-")
        if inner is bool and is_option:
            value, names = "", given or (long, f"--no-{long[2:]}")
        else:
            word = (info.metavar or _type_word(inner, name)).strip("[]…")
            value, names = word, given or ((long,) if is_option else ())
        default = parameter.default
        shown = "" if default in (None, False, inspect.Parameter.empty) or info.show_default is False else default
        if many:
            value += "…"
        required = default is inspect.Parameter.empty
        text = str(shown.value if isinstance(shown, Enum) else shown)
        yield Parameter(names, value, is_option, "required" if required else text, info.help or "")


def _type_word(kind: Any, name: str) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(each.value) for each in kind)
    return {int: "N", Path: "PATH"}.get(kind, name.strip("_").upper())


def prose(text: str) -> str:
    """A docstring as Markdown that says the same."""
    return re.sub(r"([*<])", r"\\\1", text)


def commands() -> str:
    parts = [COMMANDS, "## Options before the command\n\n" + _parameter_table(root)]
    for command in all_commands():
        if command.function is None:
            parts.append(f"## cronjobs {command.path}\n\n{prose(command.help)}")
            continue
        found = list(parameters(command.function))
        arguments = "".join(
            f" {each.value}" if each.default == "required" else f" [{each.value}]"
            for each in found
            if not each.is_option
        )
        level = "###" if " " in command.path else "##"
        part = f"{level} cronjobs {command.path}\n\n```\ncronjobs {command.path}{arguments} [OPTIONS]\n```\n\n"
        part += f"{prose(command.help)}\n\n{_parameter_table(command.function)}"
        if command.epilog:
            part += f"\n\n{prose(command.epilog)}"
        parts.append(part)
    return "\n\n".join(parts)


def _parameter_table(function: Callable[..., Any]) -> str:
    rows = []
    for each in parameters(function):
        names = ", ".join(code(name) for name in each.names) or code(each.value)
        value = code(each.value) if each.names and each.value else ""
        default = each.default if each.default in ("", "required") else code(each.default)
        rows.append((names, value, default, cell(prose(each.help))))
    return table(("option", "value", "default", "what it does"), rows)


# --- events.md --------------------------------------------------------------------------------------------------------

# When each event is logged.
EVENTS = {
    "job.claimed": "A tick has claimed the job; the job starts as soon as a worker is free.",
    "job.started": "A worker is starting the code of an attempt.",
    "job.succeeded": "An attempt succeeded.",
    "job.retried": "An attempt failed, and the job will be tried again after next_delay_ms.",
    "job.dead": "A job became dead: no tries left, a final failure, or too many lost runners.",
    "job.cancelled": "A running job was cancelled, and has stopped.",
    "job.interrupted": (
        "A shutdown or the end of the tick stopped an attempt; the job will run again. The first three times in a row, "
        "no try is charged."
    ),
    "job.snoozed": "The handler snoozed its job; this does not count as a failure.",
    "job.lost": "The runner died or lost its lease; the job will run again.",
    "job.released": "A claimed job was released before it started; no try is charged.",
    "job.not_begun": "The host could not start a job; the job was released, and no try is charged.",
    "job.not_started": "A job was due, but its timeout did not fit into the time left in the tick.",
    "job.progress": "A job reported its progress. This event is only shown on a terminal.",
    "job.timed_out": "A handler thread was still running at its timeout; the thread occupies a worker until it ends.",
    "job.still_running": "A handler did not stop in time; its process ends with the tick.",
    "executor.started": "A supervisor started. It submits the jobs of an executor's types to the executor's cluster.",
    "executor.not_started": "The supervisor of an executor could not be started; the jobs for this executor wait.",
    "executor.ended": "A supervisor exited: it was idle, its configuration file changed, or it was asked to stop.",
    "executor.away": (
        "The scheduler of an executor cannot be reached. Until it answers, no jobs are claimed for the executor."
    ),
    "executor.back": "The scheduler of an executor can be reached again.",
    "job.handed_over": "A long job started in its own process, which outlives the tick.",
    "job.not_handed_over": "No process could be started for a long job; the job was released.",
    "job.lease_lost": "Another runner took over the job, so the first runner's attempt recorded nothing.",
    "job.lease_cut": (
        "A runner with a wrong clock wrote a lease that was too long; the lease was cut to the normal length."
    ),
    "job.end_not_recorded": (
        "An attempt ended, but its outcome was not recorded: a later tick will record the attempt as lost."
    ),
    "job_type.crashing": "Jobs of a type crash their runners; jobs of this type now run in child processes.",
    "job_type.cleared": "Jobs of the type have stopped crashing; jobs of this type run in threads again.",
    "worker.not_started": "The host could not start another thread; the tick runs with fewer workers.",
    "schedule.enqueued": "An occurrence became a job.",
    "schedule.skipped": "An occurrence did not become a job, because of overlap, a full queue, or a pause that skips.",
    "schedule.missed": "No tick ran in time, and catch_up does not allow the occurrence to run later.",
    "schedule.coalesced": "Several occurrences were due; one job runs for all of them.",
    "schedule.held_back": "A pause ended; the tick is settling the occurrences that the pause held back.",
    "schedule.watermark_reset": (
        "Because a clock was wrong, the database recorded a schedule as settled up to a future time; this time was "
        "reset to now."
    ),
    "schedule.ran_early": "Occurrences ran too early because of a wrong clock; ticks enqueue no other jobs for them.",
    "schedule.broken": "A stored definition cannot be read; the schedule creates no jobs.",
    "schedules.applied": "The file's schedules were applied to the database.",
    "schedules.left": "Half of the tick's time was used and some schedules were still due; the next tick continues.",
    "sync.unfinished": "Only part of the file was applied; the next tick continues.",
    "jobs.taken_back": (
        "Because a clock was wrong, jobs were created too early; the tick withdrew these jobs before they started."
    ),
    "jobs.unresolved": "Jobs are waiting for a handler or command that this host does not have.",
    "jobs.unknown_type": "Jobs are waiting, and no host has known their type for several minutes.",
    "queue.dropped": "A full queue dropped jobs; the program that enqueued them logs this.",
    "enqueue.key_of_another_type": (
        "A job of another type already had the idempotency key; the program that called enqueue logs this."
    ),
    "config.fault": "A part of the file or one of your modules cannot be used; everything else runs.",
    "clock.skew": "This host's clock differs from the database's clock. Ticks use the database's clock.",
    "tick.not_started": "A tick could not start: a bad file, an unusable database, or a database of another project.",
    "tick.stopping": "The tick received a signal; it claims no more jobs and ends.",
    "tick.fault": "An internal error in cronjobs; running jobs finish.",
    "tick.traceback": "The traceback of tick.fault.",
    "tick.left_behind": "Processes started by a handler thread were still running at the end of the tick.",
    "tick.ended": (
        "The last line of a tick that had work: how the tick ended, and the facts in the column `did` of its row in "
        "cronjobs_ticks. The fact occurrences_OUTCOME is the number of occurrences with that outcome."
    ),
    "database.trouble": "The database failed; this tick could not do all its work.",
    "database.tried_again": "A statement failed with a transient error and was retried.",
    "prune.put_off": "Old rows could not be deleted; a later tick will delete them.",
    "extra.failed": "An extra raised an error; the tick continued.",
    "extra.left_behind": (
        "An extra took too long, or the tick had no time left for it (`after_ms` is then about 0); the tick continued "
        "without it."
    ),
    "metrics.not_written": "The metrics file could not be written.",
    "alert.sent": "A channel delivered a message.",
    "alert.not_sent": "A channel did not accept a message; the message is kept and sent again later.",
    "alert.failed": "The findings could not be evaluated; the next tick retries.",
    "ping.not_sent": "A dead man's switch could not be reached.",
}

EVENTS_PAGE = """# Every event

Each line of the log has a timestamp, the event's name, and its facts:

```
2026-11-20T02:15:04.112Z job.lost job_id=17 job_type=billing.send_invoice attempt=2 losses=1 last_runner=web1:4711
```

Names and facts stay the same between releases; a fact that does not apply is left out. `run-due --json` prints
the events as JSON, one object per line. On a terminal a tick prints the events, too."""


class EventFacts(NamedTuple):
    levels: tuple[str, ...]
    facts: tuple[str, ...]


LEVELS = ("INFO", "WARNING", "ERROR")
OF_A_JOB = ("job_id", "job_type", "worker", "attempt")  # events._of


def events_in_code() -> dict[str, EventFacts]:
    """Each event that ``events.py`` can make: with which levels and which facts, read from its source."""
    found: dict[str, EventFacts] = {}
    for function in ast.parse(inspect.getsource(events_module)).body:
        if not isinstance(function, ast.FunctionDef) or getattr(function.returns, "id", "") != "Event":
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "Event":
                continue
            name, *facts = (list(_with_variables(argument, function)) for argument in call.args)
            names = {node.value for node in name if _is_event_name(node)}
            levels = [node.id for part in facts for node in part if isinstance(node, ast.Name) and node.id in LEVELS]
            keys = sorted({key: None for part in facts for node in part for key in _facts(node)}, key=_comes_first)
            shown = tuple(level.lower() for level in LEVELS if level in (levels or ["INFO"]))
            for each in names:
                before = found.get(each, EventFacts((), ()))
                found[each] = EventFacts(
                    tuple(dict.fromkeys(before.levels + shown)), tuple(dict.fromkeys(before.facts + tuple(keys)))
                )
    return found


def _with_variables(node: ast.AST, function: ast.FunctionDef) -> Iterator[Any]:
    """All nodes of an expression, and of what was assigned to the names in it."""
    yield from ast.walk(node)
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - set(LEVELS)
    for line in ast.walk(function):
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AugAssign) else []
        )
        if names & {target.id for target in targets if isinstance(target, ast.Name)}:
            yield from ast.walk(line)


def _is_event_name(node: Any) -> bool:
    return isinstance(node, ast.Constant) and bool(re.fullmatch(r"[a-z_]+\.[a-z_]+", str(node.value)))


def _comes_first(fact: str) -> int:
    return OF_A_JOB.index(fact) if fact in OF_A_JOB else len(OF_A_JOB)


def _facts(node: Any) -> Iterator[str]:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_of":
        yield from OF_A_JOB
        yield from (word.arg for word in node.keywords if word.arg)
    elif isinstance(node, ast.Dict):
        yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def events() -> str:
    made = events_in_code()
    rows = (
        (code(name), " or ".join(made[name].levels), " ".join(code(fact) for fact in made[name].facts), cell(sentence))
        for name, sentence in EVENTS.items()
    )
    return f"{EVENTS_PAGE}\n\n{table(('event', 'level', 'facts', 'when'), rows)}"


# --- python.md --------------------------------------------------------------------------------------------------------

PYTHON = """# The Python API

What these modules export is public, and changes only with a line in the changelog; everything else is internal."""
MODULES = ("cronjobs", "cronjobs.testing", "cronjobs.extras", "cronjobs.contrib.web", "cronjobs.autogenerate")


def exported(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if name.startswith("include_")]
    return sorted((name for name in names if not name.startswith("__")), key=str.lower)


def python() -> str:
    parts = [PYTHON]
    for module_name in MODULES:
        module = import_module(module_name)
        parts.append(f"## {module_name}\n\n{rest(inspect.getdoc(module) or '')}")
        parts += [_described(name, getattr(module, name)) for name in exported(module)]
    return "\n\n".join(parts)


def _described(name: str, value: Any) -> str:
    if not callable(value):
        return f"### {name}\n\n{code(repr(value))}"
    lines = [f"### {name}", f"```python\n{_heading(name, value)}\n```", rest(own_doc(value))]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        lines += list(_members(value))
    return "\n\n".join(line for line in lines if line)


def own_doc(value: Any) -> str:
    """Its docstring; not one that Python made up for a dataclass, or that a base class has."""
    doc = value.__dict__.get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    made_up = inspect.isclass(value) and str(doc or "").startswith(f"{value.__name__}(")
    return "" if made_up else inspect.cleandoc(doc or "")


def _heading(name: str, value: Any) -> str:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base not in (object, tuple))
        return f"class {name}({bases})" if bases else f"class {name}"
    return f"{'async ' if inspect.iscoroutinefunction(value) else ''}def {name}{signature_text(value)}"


def _members(value: type) -> Iterator[str]:
    """Fields, properties and methods of its own that are public."""
    fields = [
        f"- `{name}: {kind if isinstance(kind, str) else getattr(kind, '__forward_arg__', kind)}`"
        for name, kind in inspect.get_annotations(value).items()
        if not name.startswith("_")
    ]
    if fields and "Attributes:" not in (value.__doc__ or ""):
        yield "\n".join(fields)
    for name, member in value.__dict__.items():
        if name.startswith("_") or name in inspect.get_annotations(value):  # a field with a default
            continue
        if isinstance(member, property):
            yield f"`{name}`: {_first_line(member)}".rstrip(": ")
        elif inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            doc = rest(inspect.cleandoc(function.__doc__ or ""))
            yield f"```python\n{_heading(name, function)}\n```\n\n{doc}".rstrip()


def _first_line(member: property) -> str:
    return rest(inspect.cleandoc(member.__doc__ or ""))


def signature_text(function: Callable[..., Any]) -> str:
    """As it is written in the source, which is the same for every version of Python."""
    node = ast.parse(_source(function)).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    taken = list(_written(node.args))
    flat = f"({', '.join(taken)}){returns}"
    return flat if len(flat) < 90 else "(\n" + "".join(f"    {each},\n" for each in taken) + f"){returns}"


def _written(given: ast.arguments) -> Iterator[str]:
    """Each parameter as one writes it, with the "*" and "/" between them."""
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for number, (one, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        yield _parameter(one, default)
        if number == len(given.posonlyargs):
            yield "/"
    if given.vararg or given.kwonlyargs:
        yield "*" + (_parameter(given.vararg, None) if given.vararg else "")
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(one, default)
    if given.kwarg:
        yield "**" + _parameter(given.kwarg, None)


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    equals = " = " if kind else "="
    return f"{one.arg}{kind}" + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def _source(function: Callable[..., Any]) -> str:
    lines = inspect.getsource(inspect.unwrap(function)).splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


def rest(text: str) -> str:
    """A docstring as Markdown: ``x`` is `x`, an indented list of attributes is a list, "::" begins code."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"(?m)^::$\n", "", text)
    text = re.sub(r"(?m)^Attributes:\n((?:    .*(?:\n|$))+)", lambda found: _listed(found[1]), text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _listed(block: str) -> str:
    joined = re.sub(r"\n {5,}", " ", block)
    return re.sub(r"(?m)^ {4}(\w+):", r"- `\1`:", joined)


# --- all pages --------------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "commands.md": commands,
    "events.md": events,
    "python.md": python,
}


def text_of(page: str) -> str:
    return f"{NOTE}\n\n{PAGES[page]()}\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    differing = 0
    REFERENCE.mkdir(exist_ok=True)
    for page in PAGES:
        file, text = REFERENCE / page, text_of(page)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments:
            print(f"docs/reference/{page} is not what the code says: run python docs/generate.py")
            differing = 1
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote docs/reference/{page}")
    return differing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
