"""Files that root does not trust: check reports them, and no process of root runs them.

If the tests run as root, they really give files to the user nobody. Other users cannot give files away, so the tests
then pretend: files of the user who runs the tests count as root's, and files given away count as nobody's.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pwd
import py_compile
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.project import BARE, Project

from cronjobs.engine.config import trust
from cronjobs.engine.config.import_path import prepare_imports
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.trust import Facts, UntrustedFiles, judge, way_to
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.files import make_folder, open_regular
from cronjobs.engine.jobs import job_types
from cronjobs.engine.run_due.options import TickOptions
from cronjobs.engine.run_due.settings import readable_settings, tick_settings
from cronjobs.engine.tick.long_jobs import PROGRAM, Handover
from cronjobs.errors import ConfigError
from cronjobs.testing.configured import handlers_of, settings_of

ME, ANOTHER = 1000, 1001
STICKY = stat.S_ISVTX
NOBODY = pwd.getpwnam("nobody")
GIVES_AWAY = os.geteuid() == 0
THEIRS = "but this command runs as root: run this command as nobody, or check what the file contains, then chown root"
Give = Callable[[Path], None]
Refused = Callable[..., UntrustedFiles]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Give a file, folder or link to nobody."""
    given: set[Path] = set()
    found = trust._facts

    def facts(path: Path) -> Facts | None:
        if (facts := found(path)) is None:
            return None
        mine = 0 if facts.owner == os.getuid() else facts.owner
        return replace(facts, owner=NOBODY.pw_uid if path in given else mine)

    if not GIVES_AWAY:
        monkeypatch.setattr(trust, "_facts", facts)
    return lambda path: os.lchown(path, NOBODY.pw_uid, NOBODY.pw_gid) if GIVES_AWAY else given.add(path)


@pytest.fixture
def refused(give: Give) -> Refused:
    """A function that returns the refusal of root's process, and fails if nothing was refused."""

    def ask(settings: Settings, environ: dict[str, str] | None = None, *, programs: bool = False) -> UntrustedFiles:
        with pytest.raises(UntrustedFiles) as caught:
            trust.require(settings, environ or {}, me=0, programs=programs)
        assert caught.value.exit_code == 3
        return caught.value

    return ask


def paths(error: UntrustedFiles) -> set[Path]:
    return {found.path for found in error.findings}


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        (Facts(0o644, ME, False), None),
        (Facts(0o644, 0, False), None),  # root may write everything anyway
        (Facts(0o666, ME, False), True),
        (Facts(0o646, 0, False), True),
        (Facts(0o664, ME, False), None),  # a group of its own
        (Facts(0o664, ME, False, frozenset({"ada"})), True),
        (Facts(0o664, ME, False, frozenset({"bob"})), None),  # whom root trusts
        (Facts(0o644, ME, False, frozenset({"ada"})), None),
        (Facts(0o777, ME, True), True),
        (Facts(0o777 | STICKY, 0, True), None),  # as /tmp
        (Facts(0o775 | STICKY, 0, True, frozenset({"ada"})), None),
        (Facts(0o666 | STICKY, ME, False), True),  # on a file, the sticky bit means nothing
        (Facts(0o777, ME, False, is_link=True), None),  # all links have this mode
        (Facts(0o777, ANOTHER, False, is_link=True), False),
        (Facts(0o644, ANOTHER, False), False),
        (Facts(0o755, ANOTHER, True), False),
        (Facts(0o755 | STICKY, ANOTHER, True), False),  # the folder's owner can replace the files in it
        (Facts(0o666, ANOTHER, False), True),
    ],
)
def test_who_else_can_write_and_what_is_refused(facts: Facts, refused: bool | None) -> None:
    found = judge(Path("x"), facts, ME, ("bob",))
    assert (None if found is None else found.refused) == refused


def test_root_refuses_what_another_user_owns_unless_it_is_data() -> None:
    theirs = Facts(0o644, ANOTHER, False)
    assert [bool(found and found.refused) for found in (judge(Path("x"), theirs, 0), judge(Path("x"), theirs, ME))] == [
        True,
        False,
    ]
    mine = judge(Path("x"), theirs, ME)
    assert mine is not None
    assert mine.cures == (f"chown {trust._user(ME)}",)
    as_data = judge(Path("x"), theirs, 0, is_code=False)
    assert as_data is not None
    assert not as_data.refused
    assert judge(Path("x"), theirs, 0, (str(ANOTHER),)) is None  # also by number


def test_a_sticky_folder_protects_what_is_in_it_and_not_what_is_to_be_added() -> None:
    folder = Facts(0o777 | STICKY, 0, True)
    assert judge(Path("x"), folder, 0) is None
    assert judge(Path("x"), folder, 0, is_added_to=True) is not None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / ".env").write_text("A=b\n")
    (tmp_path / "secret").write_text("c")
    (tmp_path / "src" / "shop").mkdir(parents=True)
    for name in ("src/shop/__init__.py", "src/shop/jobs.py", "prepare.py"):
        (tmp_path / name).touch()
        py_compile.compile(str(tmp_path / name))
    (tmp_path / "jobs.db").touch()
    file = tmp_path / "cronjobs.yaml"
    file.write_text(
        "database: sqlite:///jobs.db\nenv_file: .env\nimports: [shop.jobs]\npython_path: [src]\nsetup: prepare.all\n"
        "env: {SECRET: '${file:secret}'}\n"
    )
    return load(file, environ={})


def pyc(source: str) -> str:
    return importlib.util.cache_from_source(source)


CODE = [
    *(".env", "secret", "src", "src/shop", "src/shop/__init__.py", "src/shop/jobs.py", "prepare.py"),
    *("__pycache__", "src/shop/__pycache__", pyc("prepare.py"), pyc("src/shop/jobs.py")),
    *("cronjobs.yaml", "."),
]


@pytest.mark.parametrize("name", [*CODE, "jobs.db"])
def test_root_refuses_what_everybody_may_write(settings: Settings, name: str, refused: Refused) -> None:
    trust.require(settings, {}, me=0)
    (settings.folder / name).chmod(0o777)
    error = refused(settings)
    assert paths(error) == {settings.folder / name}
    assert "is writable by everyone (mode 0777), but this command runs as root: chmod o-w" in str(error)
    trust.require(settings, {}, me=ME)  # the damage is that user's own
    trust.require(settings, {trust.VARIABLE: "1"}, me=0)


@pytest.mark.parametrize("name", CODE)
def test_root_refuses_what_another_user_owns(settings: Settings, name: str, refused: Refused, give: Give) -> None:
    give(settings.folder / name)
    assert paths(refused(settings)) == {settings.folder / name}
    trust.require(settings, {trust.VARIABLE: "1"}, me=0)
    trust.require(settings, {trust.VARIABLE: "deploy, nobody"}, me=0)
    trust.require(settings, {trust.VARIABLE: str(NOBODY.pw_uid)}, me=0)
    refused(settings, {trust.VARIABLE: "deploy"})


def test_root_runs_with_a_database_of_another_users(settings: Settings, give: Give) -> None:
    """Rows of a database choose no code, and an app that enqueues has its own database."""
    give(settings.folder / "jobs.db")
    trust.require(settings, {}, me=0)
    assert [found.refused for found in trust.look(settings, {}, 0)] == [False]


def test_a_pycache_for_everybody_is_refused_even_if_it_is_sticky(settings: Settings, refused: Refused) -> None:
    (settings.folder / "__pycache__").chmod(0o1777)
    assert paths(refused(settings)) == {settings.folder / "__pycache__"}


def test_nobody_is_told_to_make_planted_bytecode_roots(settings: Settings, refused: Refused, give: Give) -> None:
    planted = settings.folder / pyc("prepare.py")
    give(planted)
    assert f".pyc belongs to nobody, but this command runs as root: rm {planted}; if that is intended" in str(
        refused(settings)
    )


# --- the way out ------------------------------------------------------------------------------------------------------


def test_the_way_out_is_named_and_works(settings: Settings, refused: Refused) -> None:
    (settings.folder / "src").chmod(0o777)
    assert 'if that is intended, write "run: {trust_files: true}"' in str(refused(settings))
    settings.file.write_text(settings.file.read_text() + "run: {trust_files: true}\n")
    trusting = load(settings.file, environ={})
    trust.require(trusting, {}, me=0)
    settings.file.chmod(0o666)  # and who can write it could have written that line
    assert f"set {trust.VARIABLE}=1 in the crontab" in str(refused(trusting))


def test_a_user_is_trusted_by_name(settings: Settings, refused: Refused, give: Give) -> None:
    give(settings.folder / "prepare.py")
    said = str(refused(settings))
    assert f"prepare.py belongs to nobody, {THEIRS} " in said
    assert said.endswith('if that is intended, write "run: {trust_files: [nobody]}"')
    settings.file.write_text(settings.file.read_text() + "run: {trust_files: [deploy, nobody]}\n")
    trusting = load(settings.file, environ={})
    assert trusting.run.trust_files == ("deploy", "nobody")
    trust.require(trusting, {}, me=0)
    (settings.folder / "prepare.py").chmod(0o666)  # whoever is trusted, everybody is not
    assert str(refused(trusting)).endswith('write "run: {trust_files: true}"')


def test_the_file_names_nobody_who_could_have_written_it(settings: Settings, refused: Refused, give: Give) -> None:
    settings.file.write_text(settings.file.read_text() + "run: {trust_files: [nobody]}\n")
    give(settings.file)
    trusting = load(settings.file, environ={})
    assert f"if that is intended, set {trust.VARIABLE}=nobody in the crontab" in str(refused(trusting))


def test_a_folder_that_another_user_deploys_needs_one_line(settings: Settings, refused: Refused, give: Give) -> None:
    for file in (settings.folder, *settings.folder.rglob("*")):
        give(file)
    (said,) = refused(settings, {trust.VARIABLE: "ci"}).lines
    assert said.startswith(f"{settings.folder}, {settings.file}, {settings.folder}/")
    theirs = THEIRS.replace("the file contains, then", "the files contain, then run")
    assert f" more belong to nobody, {theirs} on each of them; if that is intended, set" in said
    assert f"set {trust.VARIABLE}=ci,nobody in the crontab, or in your shell if you run the command by hand" in said
    trust.require(settings, {trust.VARIABLE: "ci,nobody"}, me=0)


def test_an_outcast_in_the_group_counts_by_name(
    settings: Settings, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.file.chmod(0o664)
    monkeypatch.setattr(trust, "_members", lambda group, owner: frozenset({"ada", "bob"}))
    assert "by its group (ada, bob; mode 0664)" in str(refused(settings))
    assert f"set {trust.VARIABLE}=ada,bob in" in str(refused(settings))
    assert "by its group (bob; mode 0664)" in str(refused(settings, {trust.VARIABLE: "ada"}))
    trust.require(settings, {trust.VARIABLE: "ada,bob"}, me=0)


def test_an_owner_and_a_group_are_one_sentence(
    settings: Settings, refused: Refused, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings.folder / "prepare.py").chmod(0o664)
    give(settings.folder / "prepare.py")
    monkeypatch.setattr(trust, "_members", lambda group, owner: frozenset({"www-data"}))
    said = str(refused(settings))
    assert "belongs to nobody and is writable by its group (www-data; mode 0664)" in said
    assert said.endswith('write "run: {trust_files: [nobody, www-data]}"')


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of root's, apart from the project's."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.mark.parametrize("name", ["cronjobs.yaml", ".env", "prepare.py", "src", "src/shop", "src/shop/jobs.py"])
def test_a_link_is_as_good_as_each_folder_that_it_leads_through(
    settings: Settings, name: str, elsewhere: Path, refused: Refused
) -> None:
    first, second = elsewhere / "first", elsewhere / "second"
    for folder in (first, second):
        folder.mkdir()
    file = settings.folder / name
    file.rename(second / "it")
    (first / "it").symlink_to("../second/it")  # as current -> releases/17
    file.symlink_to(first / "it")
    trust.require(settings, {}, me=0)
    for folder in (first, second):
        folder.chmod(0o777)
        assert paths(refused(settings)) == {folder}
        folder.chmod(0o755)


def test_whoever_owns_a_link_can_lead_it_elsewhere(
    settings: Settings, elsewhere: Path, refused: Refused, give: Give
) -> None:
    elsewhere.chmod(0o1777)
    (settings.folder / "prepare.py").rename(settings.folder / "it.py")
    (elsewhere / "link").symlink_to(settings.folder / "it.py")
    (settings.folder / "prepare.py").symlink_to(elsewhere / "link")
    trust.require(settings, {}, me=0)
    give(elsewhere / "link")
    assert paths(refused(settings)) == {elsewhere / "link"}


def test_the_way_to_a_file_is_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to("../b/./c")
    (tmp_path / "a" / "round").symlink_to("round")
    (tmp_path / "b" / "c").mkdir(parents=True)
    way = [str(path.relative_to(tmp_path)) for path in way_to(tmp_path / "a/up/x") if tmp_path in path.parents]
    assert way == ["a", "a/up", "b", "b/c", "b/c/x"]
    assert len(list(way_to(tmp_path / "a" / "round" / "x"))) < 100


# --- programs ---------------------------------------------------------------------------------------------------------


def with_command(settings: Settings, command: str, more: str = "") -> Settings:
    without = settings.file.read_text().partition("job_types:")[0]
    settings.file.write_text(f"{without}job_types: {{run: {{command: {command}{more}}}}}\n")
    return load(settings.file, environ={})


def script(file: Path) -> Path:
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("command", ["[./job.sh]", "[sh, job.sh]", "[sh, -eu, job.sh, x]", "[/usr/bin/env, x]"])
def test_the_program_of_a_command_is_code(settings: Settings, command: str, refused: Refused) -> None:
    script(settings.folder / "job.sh")
    asked = with_command(settings, command)
    trust.require(asked, BARE, me=0, programs=True)
    (settings.folder / "job.sh").chmod(0o777)
    trust.require(asked, BARE, me=0)  # who only imports starts no programs
    if "job.sh" in command:
        assert paths(refused(asked, BARE, programs=True)) == {settings.folder / "job.sh"}
    else:
        trust.require(asked, BARE, me=0, programs=True)


def test_a_program_is_looked_for_in_the_commands_folder(settings: Settings, elsewhere: Path, refused: Refused) -> None:
    script(elsewhere / "job.sh").chmod(0o777)
    asked = with_command(settings, "[./job.sh]", f", folder: {elsewhere}")
    assert paths(refused(asked, BARE, programs=True)) == {elsewhere / "job.sh"}


def test_a_program_is_looked_for_on_the_path_up_to_where_it_is(
    settings: Settings, elsewhere: Path, refused: Refused
) -> None:
    for name in ("one", "two", "three"):
        (elsewhere / name).mkdir()
    script(elsewhere / "two" / "job")
    environ = {"PATH": ":".join(str(elsewhere / name) for name in ("one", "two", "three"))}
    asked = with_command(settings, "[job]")
    for name in ("one", "two", "three"):
        (elsewhere / name).chmod(0o777)
        if name == "three":  # nobody looks there
            trust.require(asked, environ, me=0, programs=True)
        else:
            assert paths(refused(asked, environ, programs=True)) == {elsewhere / name}
        (elsewhere / name).chmod(0o755)
    (elsewhere / "one").chmod(0o1777)  # everybody can add files that are not there yet
    assert paths(refused(asked, environ, programs=True)) == {elsewhere / "one"}
    by_env = with_command(settings, "[job]", f", env: {{PATH: {elsewhere / 'two'}}}")
    trust.require(by_env, environ, me=0, programs=True)


@pytest.mark.needs("contrib")
def test_the_program_of_an_alert_is_code(settings: Settings, refused: Refused) -> None:
    script(settings.folder / "page").chmod(0o777)
    settings.file.write_text(settings.file.read_text() + "alerts: {channels: {ops: {command: [./page]}}}\n")
    assert paths(refused(load(settings.file, environ={}), BARE, programs=True)) == {settings.folder / "page"}


def test_the_interpreter_is_taken_as_it_is(settings: Settings, give: Give) -> None:
    asked = with_command(settings, f"[{sys.executable}, -V]")
    trust.require(asked, BARE, me=0, programs=True)


# --- what handlers import ---------------------------------------------------------------------------------------------


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, give: Give) -> None:
    """Let this process import as root would, and forget at the end what it has imported."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("what", ["file", "owner", "pycache", "pyc", "folder", "link"])
def test_a_module_that_a_handler_imports_is_looked_at_before_it_runs(
    settings: Settings, what: str, give: Give, elsewhere: Path
) -> None:
    folder = settings.folder / "parts"  # a namespace package: nothing names it
    folder.mkdir()
    helper, ran = folder / "helper.py", settings.folder / "ran"
    helper.write_text(f"open({str(ran)!r}, 'w').close()\n")
    (settings.folder / "prepare.py").write_text("try:\n    from parts import helper\nexcept ImportError:\n    pass\n")
    loose = helper
    if what == "file":
        helper.chmod(0o666)
    elif what == "owner":
        give(helper)
    elif what == "folder":
        loose = folder
        folder.chmod(0o777)
    elif what == "link":
        loose = elsewhere
        helper.rename(elsewhere / "it.py")
        helper.symlink_to(elsewhere / "it.py")
        elsewhere.chmod(0o777)
    else:
        compiled = Path(py_compile.compile(str(helper)) or "")
        loose = compiled if what == "pyc" else compiled.parent
        loose.chmod(0o777)
    prepare_imports(settings)
    with pytest.raises(UntrustedFiles) as refused:
        importlib.import_module("prepare")
    assert paths(refused.value) == {loose}
    assert not ran.exists()
    loose.chmod(0o755)
    if what != "owner":
        importlib.import_module("prepare")
        assert ran.exists()


@pytest.mark.usefixtures("root")
def test_every_command_asks_before_it_imports(settings: Settings) -> None:
    (settings.folder / "prepare.py").chmod(0o666)
    before = list(sys.path)
    for load_handlers in (prepare_imports, job_types.load):  # the one is where all commands come by
        with pytest.raises(UntrustedFiles):
            load_handlers(settings)
    assert sys.path == before


@pytest.mark.usefixtures("root")
def test_a_tick_asks_for_its_programs(settings: Settings) -> None:
    script(settings.folder / "job.sh").chmod(0o777)
    with_command(settings, "[./job.sh]")
    with pytest.raises(UntrustedFiles, match=r"job\.sh is writable by everyone"):
        tick_settings(TickOptions(config=settings.file))


@pytest.mark.usefixtures("root")
def test_modules_of_the_interpreter_and_of_packages_are_not_looked_at(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_imports(settings)
    looked: list[Path] = []
    monkeypatch.setattr(trust, "require_files", lambda files, *_: looked.extend(files))
    for name in ("wave", "json.tool", "yaml.cyaml", "cronjobs.extras", "prepare"):
        sys.modules.pop(name, None)
        importlib.import_module(name)
    assert looked[0] == settings.folder / "prepare.py"
    assert len(looked) == 2  # and its .pyc


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("config", [None, "cronjobs.yaml"])
def test_whoever_tests_handlers_trusts_them(
    settings: Settings, config: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that is mounted into a container of root's: pytest has run its code already."""
    monkeypatch.chdir(settings.folder)
    (settings.folder / "prepare.py").chmod(0o666)
    (settings.folder / "prepare.py").write_text("def all() -> None: ...\n")
    assert handlers_of(settings_of(config, () if config else ["prepare"], "sqlite:///x.db")).faults == ()


def test_what_others_may_write_reports_no_unusable_file_for_root(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alerts of such a file may run a program."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    settings.file.write_text("database: sqlite:///x.db\nshedules: {}\n")
    given = TickOptions(config=settings.file)
    settings.file.chmod(0o644)
    assert readable_settings(given) is not None
    settings.file.chmod(0o666)
    assert readable_settings(given) is None


# --- commands ---------------------------------------------------------------------------------------------------------

ROOTS = pytest.mark.skipif(
    not GIVES_AWAY,
    reason="needs root: it gives files to another user, and runs as root what that user could have written",
)
RAN = "open('ran', 'w')\n"
HANDLERS = f"{RAN}from cronjobs import job\n\n@job('t.x')\ndef x() -> None:\n    import helper\n"


@pytest.fixture
def project(sqlite_migrated: str, tmp_path: Path) -> Project:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(handlers=HANDLERS)
    return project


def test_check_reports_it(project: Project) -> None:
    (project.folder / "handlers.py").chmod(0o666)
    answer = project.call("check", "--no-import")
    assert answer.code == 1
    assert "handlers.py is writable by everyone (mode 0666)" in answer.out + answer.err


COMMANDS = {
    "run-due": 3,
    "run-due --dry-run": 3,
    "status": 3,
    "run t.x": 3,
    "enqueue t.x": 3,
    "ack 1": 3,
    "check --live": 1,
}
OF_AN_EXTRA = pytest.param("report --out report.html", 3, marks=pytest.mark.needs("contrib.web"))


@ROOTS
@pytest.mark.slow
@pytest.mark.parametrize(("command", "code"), [*COMMANDS.items(), OF_AN_EXTRA])
def test_no_command_of_roots_runs_what_another_user_owns(project: Project, command: str, code: int) -> None:
    os.chown(project.folder / "handlers.py", NOBODY.pw_uid, NOBODY.pw_gid)
    answer = project.run(*command.split())
    assert answer.code == code
    said = answer.out + answer.err
    assert f"handlers.py belongs to nobody, {THEIRS} " in said
    assert 'if that is intended, write "run: {trust_files: [nobody]}"' in said
    assert not (project.folder / "ran").exists()
    project.write("run: {trust_files: [nobody]}\n", HANDLERS)
    assert "this command runs as root" not in project.run(*command.split()).err
    assert (project.folder / "ran").exists()


@ROOTS
def test_an_enqueue_that_was_written_is_no_failure(project: Project) -> None:
    project.write("job_types: {t.x: {timeout: 5s}}\n", HANDLERS)
    os.chown(project.folder / "handlers.py", NOBODY.pw_uid, NOBODY.pw_gid)
    answer = project.run("enqueue", "t.x")
    assert (answer.code, len(project.jobs())) == (0, 1)
    assert "handlers.py belongs to nobody" in answer.err
    assert not (project.folder / "ran").exists()


@ROOTS
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_module_that_a_handler_imports_while_it_runs_is_refused(project: Project, isolation: str) -> None:
    project.write(f"job_types: {{t.x: {{isolation: {isolation}}}}}\n", HANDLERS)
    (project.folder / "helper.py").write_text("open('helped', 'w')\n")
    (project.folder / "helper.py").chmod(0o666)
    project.run("enqueue", "t.x")
    project.run("run-due")
    assert not (project.folder / "helped").exists()
    (run,) = project.rows("job_runs")
    assert "helper.py is writable by everyone (mode 0666), but this command runs as root" in run["error"]


@ROOTS
def test_a_tick_refuses_a_program_that_everybody_may_write(project: Project) -> None:
    (project.folder / "job.sh").write_text("#!/bin/sh\ntouch ran\n")
    (project.folder / "job.sh").chmod(0o777)
    project.write("job_types: {t.c: {command: [./job.sh]}}\n")
    project.run("enqueue", "t.c")
    for command in (["run-due"], ["run", "t.c"]):
        assert project.run(*command).code == 3
    assert "job.sh is writable by everyone (mode 0777), but this command runs as root" in project.run("check").out
    assert not (project.folder / "ran").exists()


@ROOTS
def test_the_process_of_a_long_job_looks_for_itself(project: Project) -> None:
    """That process loads the files again, which may have changed since the tick checked them."""
    (project.folder / "handlers.py").chmod(0o666)
    handover = Handover(
        config=str(project.folder / "cronjobs.yaml"),
        database=project.url,
        job_id=1,
        job_type="t.x",
        attempt=1,
        locked_by="a tick",
        timeout_s=60,
        is_command=False,
        max_memory=None,
        success=[],
        permanent=[],
        row_policy="{}",
    )
    reader, writer = os.pipe()
    with open(reader, "rb") as answer:
        command = [sys.executable, "-P", "-m", PROGRAM, str(writer)]
        done = subprocess.run(command, input=handover.encode(), pass_fds=[writer], env=BARE, check=False)
        os.close(writer)
        assert b"handlers.py is writable by everyone (mode 0666)" in answer.read()
    assert done.returncode == 3


@pytest.mark.needs("contrib")
@ROOTS
def test_doctor_names_it_and_goes_on(project: Project) -> None:
    os.chown(project.folder / "handlers.py", NOBODY.pw_uid, NOBODY.pw_gid)
    answer = project.run("doctor", "--json")
    checks = {each["check"]: each for each in answer.json["checks"]}
    assert "handlers.py belongs to nobody" in checks["configuration"]["text"]
    assert checks["handlers"]["status"] == "not applicable"
    assert not (project.folder / "ran").exists()


# --- what is no file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW])
def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path: Path, kind: str, flags: int) -> None:
    there = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(there)
    elif kind == "device":
        there = Path("/dev/null")
    elif kind == "folder":
        there.mkdir()
    else:
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(str(there))
    with pytest.raises(OSError, match="Is a directory" if kind == "folder" else "this is not a regular file"):
        open_regular(there, flags)


def test_a_fifo_in_the_configuration_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "cronjobs.yaml"
    file.write_text("database: sqlite:///x.db\nenv_file: pipe\n")
    with pytest.raises(ConfigError, match=r"env_file.*not a regular file"):
        load(file, environ={})
    file.write_text("database: '${file:pipe}'\n")
    with pytest.raises(ConfigError, match="cannot be read: this is not a regular file"):
        load(file, environ={})


# --- what we make -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_no_folder_is_made_for_everybody_to_write(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c", 0o700)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cronjobs", "init", str(tmp_path / "x" / "shop")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "x/shop")] == [0o755] * 2


def test_who_shares_the_database_shares_its_locks(sqlite_migrated: str) -> None:
    """A colleague of the same group can write to it, so it must be able to take its turn."""
    Path(sqlite_migrated).chmod(0o660)
    if os.geteuid() == 0:
        os.chown(sqlite_migrated, -1, 12)
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"))
    with database.write() as connection:
        connection.exec_driver_sql("SELECT 1")
    database.close()
    group = Path(sqlite_migrated).stat().st_gid
    for name in ("turn", "next"):
        lock = Path(f"{sqlite_migrated}-{name}").stat()
        assert (stat.S_IMODE(lock.st_mode), lock.st_gid) == (0o660, group)
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        assert connection.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (0,)
