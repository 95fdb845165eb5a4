"""Where the configuration comes from: file, database, variables and secrets. No text crashes the reader."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configfile import DATABASE, cases, problems, read, refusal

from cronjobs.engine.config import yaml_nodes
from cronjobs.engine.config.keys import FILE
from cronjobs.engine.config.keys_of_jobs import JOB_TYPE, SCHEDULE
from cronjobs.engine.config.load import load
from cronjobs.engine.config.reader import FieldError
from cronjobs.engine.config.sources import checked_url
from cronjobs.engine.database.address import parse_url
from cronjobs.errors import ConfigError, UsageError
from cronjobs.masking import mask


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- database ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("sqlite:///cronjobs.db", "sqlite:///{folder}/cronjobs.db"),
        ("sqlite:///./data/c.db?timeout=5", "sqlite:///{folder}/data/c.db?timeout=5"),
        ("sqlite+aiosqlite:///c.db", "sqlite+aiosqlite:///{folder}/c.db"),
        ("sqlite:////var/lib/c.db", "sqlite:////var/lib/c.db"),
        ("postgres://u:p@h/db", "postgres://u:p@h/db"),
        ("postgresql+asyncpg://h/db?schema=jobs", "postgresql+asyncpg://h/db?schema=jobs"),
    ],
)
def test_a_relative_sqlite_path_is_meant_from_the_files_folder(tmp_path: Path, url: str, resolved: str) -> None:
    expected = resolved.format(folder=tmp_path)
    assert read(f"database: {url}").database == expected
    assert read("database: sqlite:///y.db", database_url=url).database == expected
    assert read("database: sqlite:///y.db", {"CRONJOBS_DATABASE_URL": url}).database == expected


@pytest.mark.parametrize("name", ["a?b", "a%41b", os.fsdecode(b"m\xff")])
def test_a_folder_that_a_url_would_read_as_another_is_refused(tmp_path: Path, name: str) -> None:
    """The file was made in the folder above, in that of a neighbour, or ended in a fault of ours."""
    with pytest.raises(FieldError, match="the database file would be in another place"):
        checked_url("sqlite:///jobs.db", tmp_path / name)
    assert checked_url("sqlite:////srv/jobs.db", tmp_path / name) == "sqlite:////srv/jobs.db"
    assert checked_url("sqlite:///jobs.db", Path("/srv/100% mine")) == "sqlite:////srv/100% mine/jobs.db"


def test_the_command_line_goes_before_the_environment_and_that_before_the_file() -> None:
    environ = {"CRONJOBS_DATABASE_URL": "postgresql://environment/"}
    assert read("database: postgresql://file/", environ).database == "postgresql://environment/"
    assert read("database: ${UNSET}", environ, database_url="postgresql://line/").database == "postgresql://line/"


@pytest.mark.parametrize(
    ("line", "said"),
    cases("""
database: ${DATABASE_URL}
    1:11: database: ${DATABASE_URL} is not set: cron does not read your shell's variables; set the variable in the
    env_file, or in the crontab's line
database: ${EMPTY}
    1:11: database: the URL is empty: write sqlite:///cronjobs.db, or set the variable it comes from
database: ${NO_URL}
    1:11: database: this is not a database URL: write sqlite:///cronjobs.db or postgresql://user:password@host/name
database: mysql://h/db
    1:11: database: cronjobs supports sqlite:// and postgresql:// databases, not mysql://
database: sqlite://x.db
    1:11: database: a SQLite URL has three slashes before the file's name: sqlite:///cronjobs.db
database: 'sqlite:///:memory:'
    1:11: database: an in-memory SQLite database disappears when the process ends: name a file, such as
    sqlite:///cronjobs.db
database: [a]
    1:11: database: write one value, not a list
project: x
     no database is set: add "database: sqlite:///cronjobs.db" or "database: ${DATABASE_URL}"
"""),
)
def test_a_database_is_never_guessed(line: str, said: str) -> None:
    (message,) = refusal(line, {"EMPTY": "", "NO_URL": "hunter2"})
    assert message.removeprefix("cronjobs.yaml:").strip() == said


def test_an_empty_variable_is_not_passed_over_for_another_database() -> None:
    assert refusal(DATABASE, {"CRONJOBS_DATABASE_URL": ""}) == [
        (
            "cronjobs.yaml: CRONJOBS_DATABASE_URL: the URL is empty: write sqlite:///cronjobs.db, "
            "or set the variable it comes from"
        )
    ]


def test_a_url_with_bytes_that_are_no_utf8_is_refused() -> None:
    Path("cronjobs.yaml").write_text("project: x\n")
    with pytest.raises(ConfigError, match="--database-url: the URL is not UTF-8 text"):
        load(None, environ={}, database_url="sqlite:////srv/\udcff/c.db")
    with pytest.raises(UsageError, match="the URL is not UTF-8 text"):
        parse_url("sqlite:////srv/\udcff/c.db")


@pytest.mark.parametrize("text", ["project: x", "database: ${DATABASE_URL}"])
def test_a_command_that_needs_no_database_runs_without(text: str) -> None:
    assert read(text, need_database=False).database == ""


# --- secrets ----------------------------------------------------------------------------------------------------------

CANARY = "c4n4ry-hunter2"


def test_what_comes_in_is_known_as_secret() -> None:
    Path("secret").write_text("from-a-file\r\n")
    Path(".env").write_text("SMTP_PASSWORD=from-env-file\nDEBUG=true\nMODE=short\n")
    text = (
        "database: postgresql://app:${PW}@db/x\nenvironment: ${MODE}\nenv_file: .env\n"
        "env: {K: '${file:secret}', S: '${S}'}\n"
        "schedules: {a: {every: 1m, command: [curl, 'x:${CANARY}'], payload: {v: '${FALL:-back}'}}}"
    )
    found = read(text, {"PW": "p%40ss/w@rd", "CANARY": CANARY, "S": "abc", "MODE": "production"})
    assert dict(found.env) == {"SMTP_PASSWORD": "from-env-file", "DEBUG": "true", "K": "from-a-file", "S": "abc"}
    assert found.secrets == {
        "p%40ss/w@rd",  # as written and as decoded
        "p@ss/w@rd",
        "from-a-file",
        "from-env-file",
        CANARY,
    }


def test_the_path_of_the_log_is_no_secret() -> None:
    """Messages name the log that cannot be written. The other values of the same env_file stay masked."""
    Path(".env").write_text("LOG=/srv/shop/shared/tick.log\nSMTP_PASSWORD=from-env-file\n")
    found = read("database: sqlite:///x.db\nenv_file: .env\nlog: ${LOG}")
    assert found.log == Path("/srv/shop/shared/tick.log")
    assert found.secrets == {"from-env-file"}


@pytest.mark.parametrize(
    "text",
    [
        f"database: {where}" if where.startswith("$") else DATABASE + where
        for where in (
            "${C}",
            "run: {workers: '${C}', budget: '${C}', lease: 'x${C}'}",
            "timezone: ${C}",
            "imports: ['${C}']",
            "setup: ${C}",
            "project: ' ${C}'",
            "schema: ${C}",
            "python_path: ['${C}']",
            "defaults: {retry: {max_attempts: '${C}', jitter: '${C}', delays: ['${C}']}}",
            "schedules: {a: {cron: '${C}', job: ' ${C}', overlap: '${C}', priority: '0${C}'}}",
            "env_file: ${C}",
        )
    ],
)
def test_no_message_tells_what_a_variable_holds(text: str) -> None:
    try:
        said = problems(text, {"C": CANARY})
    except ConfigError as refused:
        said = [str(problem) for problem in refused.problems]
    assert said
    assert not any("c4n4ry" in message or "hunter2" in message for message in said)


def test_a_cron_expression_from_a_variable_is_told_by_the_variables_name() -> None:
    text = DATABASE + 'schedules: {a: {cron: "${WHEN}", job: x}}'
    assert problems(text, {"WHEN": "61 2 * * *"}) == [
        'cronjobs.yaml:2:23: schedules.a.cron: the value of "${WHEN}" is not a cron expression'
    ]


# --- the env file -----------------------------------------------------------------------------------------------------


def test_the_env_file_is_read_first_and_real_variables_win() -> None:
    Path(".env").write_text("A=file\nB=file\n")
    found = read("database: postgresql://${A}/${B}\nenv_file: .env\n", {"B": "real"})
    assert (found.database, dict(found.env)) == ("postgresql://file/real", {"A": "file"})


@pytest.mark.parametrize(
    ("url", "is_secret"),
    [
        ("postgresql://shop@127.0.0.1:5433/shop", False),
        ("postgresql:///shop?sslmode=require", False),
        ("postgresql://shop:x@db/shop", True),
        ("postgresql://db/shop?password=x", True),
        ("postgresql://db/shop?token=abcdef", True),
    ],
)
def test_messages_name_the_database_unless_its_url_holds_a_secret(url: str, is_secret: bool) -> None:
    Path(".env").write_text(f"DATABASE_URL={url}\nOTHER_URL=redis://cache/1\n")
    found = read("database: ${DATABASE_URL}\nenv_file: .env\n")
    assert (mask(f"database {url}", found.secrets) != f"database {url}") is is_secret
    assert mask("at redis://cache/1", found.secrets) == "at ***"


def test_a_bad_env_file_ends_it(tmp_path: Path) -> None:
    assert refusal(DATABASE + "env_file: .env") == [
        f'cronjobs.yaml:2:11: env_file: ".env" cannot be read: No such file or directory ({tmp_path}/.env)'
    ]
    Path(".env").write_text("A=1\nthis is nothing\n")
    assert refusal(DATABASE + "env_file: .env\nnonsense: 1")[0] == f"{tmp_path}/.env:2:1: this is not KEY=value"


# --- which file, and what lies beside it ------------------------------------------------------------------------------


def test_the_file_is_the_argument_else_the_variable_else_in_the_working_folder(tmp_path: Path) -> None:
    for name in ("a", "b", "cronjobs"):
        Path(f"{name}.yaml").write_text(f"project: {name}\n{DATABASE}")
    environ = {"CRONJOBS_CONFIG": str(tmp_path / "b.yaml")}
    assert load(Path("a.yaml"), environ=environ).project == "a"
    assert load(None, environ=environ).project == "b"
    assert load(None, environ={}).project == "cronjobs"


def test_a_missing_file_names_init() -> None:
    with pytest.raises(ConfigError) as refused:
        load(Path("sub/c.yaml"), environ={})
    assert str(refused.value) == (
        'sub/c.yaml: there is no such file: run "cronjobs init" to write one, or name yours with --config '
        "(config= in an app) or $CRONJOBS_CONFIG"
    )
    Path("sub").mkdir()
    with pytest.raises(ConfigError, match="sub: the file cannot be read: Is a directory"):
        load(Path("sub"), environ={})


def test_a_pipe_that_nobody_writes_to_is_refused_and_one_with_a_writer_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="the file cannot be read: this is a pipe that nobody writes to"):
        load(pipe, environ={})
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "w") as opened:
            opened.write(DATABASE + "project: piped\n")

    writer = Thread(target=write)
    writer.start()
    try:
        assert load(Path(f"/dev/fd/{reading}"), environ={}, database_url="sqlite:////c.db").project == "piped"
    finally:
        writer.join(60)
        os.close(reading)


def test_what_would_be_imported_instead_of_the_package_is_refused_by_name(tmp_path: Path) -> None:
    Path("src").mkdir()
    Path("src/cronjobs.py").touch()
    assert refusal(DATABASE + "python_path: [src]") == [
        (
            f"cronjobs.yaml:2:14: python_path: rename {tmp_path}/src/cronjobs.py: it would be imported instead of the "
            "cronjobs package"
        )
    ]
    Path("cronjobs").mkdir()  # a folder of data is no package
    assert problems(DATABASE) == []
    Path("cronjobs/__init__.py").touch()
    assert refusal(DATABASE) == [
        "cronjobs.yaml: rename cronjobs/: it would be imported instead of the cronjobs package"
    ]


def test_a_file_in_a_clone_of_this_package_is_fine(tmp_path: Path) -> None:
    (tmp_path / "cronjobs").symlink_to(Path(yaml_nodes.__file__).parents[2])
    assert problems(DATABASE) == []


# --- robust and quick -------------------------------------------------------------------------------------------------

_ODDITIES = r"""a 1m 5 010 { } [ ] " ' * & &x *x << | > # ? @daily ${A} ${ \ud800 \UFFFFFFFF"""
_SPACED = ["- ", ": ", ", ", "\n", "\n  ", "\n    ", "* * * * *", "\t", "\ue000", "\u2028", "\x85", "\ufeff"]
_TEXTS = ["sqlite:///x.db", "!!python/object:x", "%YAML 9.9\n", "---\n"]
_words = st.sampled_from([*FILE, *JOB_TYPE, *SCHEDULE, *_ODDITIES.split(), *_SPACED, *_TEXTS])


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=200), st.lists(_words, max_size=40).map("".join)), in_mapping=st.booleans())
def test_whatever_the_text_nothing_but_a_config_error_is_raised(
    loader: str, monkeypatch: pytest.MonkeyPatch, text: str, in_mapping: bool
) -> None:
    monkeypatch.setattr(yaml_nodes, "_Loader", getattr(yaml, loader))
    try:
        found = read((DATABASE + text if in_mapping else text).encode("utf-8", "surrogatepass"))
    except ConfigError:
        return
    assert found.database


def test_a_hundred_schedules_are_read_quickly(capsys: pytest.CaptureFixture[str]) -> None:
    entry = "  s{}:\n    cron: '*/5 * * * *'\n    job: a.b\n    timezone: Europe/Berlin\n    payload: {{n: 1}}\n"
    Path("cronjobs.yaml").write_text(DATABASE + "schedules:\n" + "".join(entry.format(n) for n in range(100)))
    began = time.perf_counter()
    assert len(load(None, environ={}).schedules) == 100
    with capsys.disabled():
        print(f" [100 schedules in {(time.perf_counter() - began) * 1000:.0f} ms]", end="")


def test_a_file_full_of_mistakes_is_told_in_bounded_time_and_length() -> None:
    began = time.thread_time()
    text = DATABASE + "".join(f"unknown{n}: 1\n" for n in range(20_000))
    assert refusal(text)[-1] == "cronjobs.yaml: and 19800 more problems"
    assert time.thread_time() - began < 20  # 20,000 guesses at what was meant would take minutes


def test_reading_a_file_imports_nothing_that_an_idle_tick_must_not() -> None:
    Path("cronjobs.yaml").write_text(DATABASE + 'schedules: {a: {cron: "1 2 * * *", timezone: Asia/Tokyo, job: x}}')
    code = (
        "import sys; from cronjobs.engine.config.load import load; assert load(None, environ={}).schedules;"
        "unwanted = {'croniter', 'alembic', 'rich', 'difflib', 'cronjobs.engine.crontime.timing'};"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    root = Path(yaml_nodes.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(root)}
    )
    assert run.stdout.strip() == "[]"
