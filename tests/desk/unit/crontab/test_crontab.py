"""The crontab gets one block, and not a byte of the rest changes."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from support.commands import started, until
from support.cronhost import Host
from typer.testing import CliRunner

from cronjobs import clock
from cronjobs.desk.cli import crontab as commands
from cronjobs.desk.crontab import block as crontab
from cronjobs.desk.crontab import host as cron_host
from cronjobs.desk.crontab import lines, program
from cronjobs.desk.crontab.other_blocks import lines_by_hand
from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.errors import UsageError

CONFIG = Path("/srv/shop/cronjobs.yaml")
PYTHON = Path("/srv/shop/.venv/bin/python")
BLOCK = crontab.block(CONFIG, PYTHON)

# Crontabs as people have them, and worse: any text (lone surrogates stand for bytes that are not UTF-8), marks of
# other projects, half-marks, with and without a newline at the end.
LINES = st.one_of(
    st.text(),
    st.text(st.characters(codec=None)),
    st.sampled_from(
        [
            "MAILTO=ops@example.com",
            "*/5 * * * * /usr/bin/true\r",
            "# cronjobs begin /srv/shop/cronjobs.yaml.old",
            "# cronjobs end /srv/shop/cronjobs.yaml2",
            "# cronjobs begin",
            " # cronjobs begin /srv/shop/cronjobs.yaml",
            crontab.block(Path("/srv/blog/cronjobs.yaml"), PYTHON),
            "0 3 * * * echo a\x0b\x0c\x1c\x85\u2028b",
        ]
    ),
)
CRONTABS = st.builds("\n".join, st.lists(LINES)).filter(lambda text: crontab.find(text, CONFIG) is None)

# ------------------------------------------------------------------------------------------------------------ the text


@given(CRONTABS)
def test_install_then_remove_gives_back_any_crontab_byte_for_byte(old: str) -> None:
    installed = crontab.install(old, BLOCK, CONFIG)
    assert installed.startswith(old)
    assert crontab.find(installed, CONFIG) is not None
    assert crontab.remove(installed, CONFIG) == ended(old)


def ended(text: str) -> str:
    """Install the text as crontab(1) does, which refuses a last line without a newline."""
    return text + "\n" if text and text[-1] != "\n" else text


@given(CRONTABS)
def test_install_twice_changes_nothing(old: str) -> None:
    once = crontab.install(old, BLOCK, CONFIG)
    assert crontab.install(once, BLOCK, CONFIG) == once


@given(CRONTABS, CRONTABS)
def test_a_new_interpreter_replaces_the_block_where_it_stands(before: str, after: str) -> None:
    newer = crontab.block(CONFIG, Path("/srv/shop/.venv-3.14/bin/python"))
    installed = crontab.install(before, BLOCK, CONFIG) + after
    replaced = crontab.install(installed, newer, CONFIG)
    assert replaced == ended(crontab.install(before, newer, CONFIG) + after)


def test_lines_that_the_user_added_below_the_block_stay_lines_of_their_own() -> None:
    installed = crontab.install("0 3 * * * backup", BLOCK, CONFIG) + "0 4 * * * report\n"
    assert crontab.remove(installed, CONFIG) == "0 3 * * * backup\n0 4 * * * report\n"


def test_several_projects_share_a_crontab() -> None:
    blog = Path("/srv/blog/cronjobs.yaml")
    both = crontab.install(crontab.install("", BLOCK, CONFIG), crontab.block(blog, PYTHON), blog)
    assert both == BLOCK + crontab.block(blog, PYTHON)
    assert crontab.remove(both, CONFIG) == crontab.block(blog, PYTHON)


def test_the_block_is_one_line_between_its_marks_and_sets_nothing_for_other_lines() -> None:
    assert BLOCK == (
        "# cronjobs begin /srv/shop/cronjobs.yaml\n"
        "* * * * * /srv/shop/.venv/bin/python -P -m cronjobs run-due --config /srv/shop/cronjobs.yaml\n"
        "# cronjobs end /srv/shop/cronjobs.yaml\n"
    )
    assert lines.settings_above(BLOCK + "1 * * * * true\n", Path("/elsewhere.yaml")) == {}


BEGIN, LINE, END = BLOCK.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("# mine\n" + BEGIN + LINE, 2, "has no end after it"),
        ("# mine\n" + END, 2, "has no begin before it"),
        (END + BEGIN, 1, "has no begin before it"),
        (BEGIN + BEGIN + LINE + END, 2, "more than once"),
        (BLOCK + BLOCK, 3, "more than once"),
        (
            BEGIN + ("# cronjobs begin /srv/blog/cronjobs.yaml\n") + LINE + END,
            2,
            "contains a begin or end line of another block",
        ),
    ],
)
def test_a_block_that_is_not_whole_is_refused_with_its_line_number(text: str, line: int, what: str) -> None:
    message = rf"^line {line} of the crontab: .*{what}.*crontab -e"
    with pytest.raises(crontab.BlockBroken, match=message):
        crontab.install(text, BLOCK, CONFIG)
    with pytest.raises(crontab.BlockBroken, match=message):
        crontab.remove(text, CONFIG)


def test_a_block_that_an_editor_gave_windows_line_ends_is_found_and_replaced() -> None:
    old = "# mine\r\n" + BLOCK.replace("\n", "\r\n") + "# mine too\r\n"
    assert crontab.install(old, BLOCK, CONFIG) == "# mine\r\n" + BLOCK + "# mine too\r\n"


# -------------------------------------------------------------------------------------------------------- the cron line

ODD_PATHS = [
    "/srv/shop/cronjobs.yaml",
    "/srv/my shop/cronjobs.yaml",
    "/srv/it's/cronjobs.yaml",
    '/srv/"shop"/cronjobs.yaml',
    "/srv/100%/cronjobs.yaml",
    "/srv/%%a b%/c'%'d.yaml",
    "/srv/$(touch x);`id`&&*?~#!/cronjobs.yaml",
    "/srv/Müller/定时.yaml",
]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_the_shell_under_cron_gets_exactly_the_path(path: str, tmp_path: Path) -> None:
    line = crontab.command(Path(path), Path("/usr/bin/python3")).replace("/usr/bin/python3", "printf '%s\\n'")
    expected = ["-P", "-m", "cronjobs", "run-due", "--config", path]
    for text in (crontab.unescaped(line), line):  # a cron that knows "\%" (crontab(5)), and busybox, which does not
        got = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert got.stdout.splitlines() == expected
    assert "%" not in line.removeprefix("printf '%s\\n'").replace(r"\%", "")


@pytest.mark.parametrize(
    "path", ["/srv/a\nb.yaml", "/srv/a\rb.yaml", "/srv/a\\b.yaml", "/srv/\x1b[2J.yaml", "/srv/\udcff"]
)
def test_a_path_that_cron_cannot_carry_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="a crontab line cannot contain the path"):
        crontab.block(Path(path), PYTHON)


def test_a_command_may_be_as_long_as_debians_cron_takes_and_no_longer() -> None:
    rest = len(crontab.command(Path("/"), PYTHON)) - 1
    fits = Path("/" + "ü" * ((crontab.LONGEST_COMMAND - rest - 3) // 2))
    assert len(crontab.command(fits, PYTHON).encode()) >= crontab.LONGEST_COMMAND - 1
    with pytest.raises(UsageError, match="bytes long, but cron accepts at most 998"):
        crontab.command(Path(f"{fits}üü"), PYTHON)


@pytest.mark.parametrize(
    ("minutes", "fields"),
    [
        (1, "* * * * *"),
        (2, "*/2 * * * *"),
        (5, "*/5 * * * *"),
        (30, "*/30 * * * *"),
        (60, "0 * * * *"),
        (120, "0 */2 * * *"),
        (720, "0 */12 * * *"),
    ],
)
def test_the_five_fields_follow_run_every(minutes: int, fields: str) -> None:
    assert crontab.when(timedelta(minutes=minutes)) == fields


@pytest.mark.parametrize("seconds", [30, 61, 90, 7 * 60, 40 * 60, 90 * 60, 5 * 3600, 86400, 0])
def test_a_distance_that_cron_cannot_keep_even_is_refused(seconds: int) -> None:
    with pytest.raises(UsageError, match=r"run\.every"):
        crontab.when(timedelta(seconds=seconds))


def test_a_relative_path_keeps_the_symlink_that_the_user_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "releases" / "17").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/17")
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("PWD", str(tmp_path / "current"))
    assert program.absolute(Path("cronjobs.yaml")) == tmp_path / "current" / "cronjobs.yaml"
    # ".." of the link is not ".." of the release: only what names the same file is tidied up
    assert os.path.realpath(program.absolute(Path("../cronjobs.yaml"))) == str(tmp_path / "releases" / "cronjobs.yaml")
    assert program.absolute(Path("./x/../cronjobs.yaml")) == tmp_path / "current" / "cronjobs.yaml"
    monkeypatch.setenv("PWD", "/")  # stale: not where we are
    assert program.absolute(Path("cronjobs.yaml")) == tmp_path / "releases" / "17" / "cronjobs.yaml"


def test_a_line_with_paths_of_the_link_and_of_its_release_is_noted(tmp_path: Path) -> None:
    (tmp_path / "releases" / "1" / ".venv" / "bin").mkdir(parents=True)
    current, release = tmp_path / "current", tmp_path / "releases" / "1"
    current.symlink_to("releases/1")
    python, file = Path(".venv/bin/python"), Path("cronjobs.yaml")
    for linked, fixed in ((current / python, release / file), (current / file, release / python)):
        by_name = {each.name: each for each in (linked, fixed)}
        said = program.mixed_release(by_name["python"], by_name["cronjobs.yaml"])
        assert said is not None
        assert f"The line names {linked} through it, but names {fixed} without it" in said
        assert said.endswith(f"Write {current / fixed.relative_to(release)} in the line")
    for one in (current, release):
        assert program.mixed_release(one / python, one / file) is None
    assert program.mixed_release(Path("/usr/bin/python3"), current / file) is None
    assert program.mixed_release(tmp_path / "venv" / "bin" / "python", current / file) is None


def test_an_absolute_path_needs_no_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert program.absolute(tmp_path / "a") == tmp_path / "a"


def test_the_interpreter_of_a_virtual_environment_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert program.interpreter() == tmp_path / "python"


@pytest.mark.parametrize(
    ("line", "settings"),  # crontab(5), "An environment setting is of the form"; load_env in cron's env.c
    [
        ("MAILTO=paul", {"MAILTO": "paul"}),
        ("  NAME  =  two words  ", {"NAME": "two words"}),
        ("NAME='  kept  '", {"NAME": "  kept  "}),
        ('"NAME"="a=b"', {"NAME": "a=b"}),
        ('MAILTO=""', {"MAILTO": ""}),
        ("MAILTO=", {"MAILTO": ""}),
        ("#MAILTO=paul", {}),
        ("* * * * * A=b true", {}),
        ("@daily A=b true", {}),
        ("*/5 * * * * test x = y", {}),
    ],
)
def test_environment_settings_are_read_as_cron_reads_them(line: str, settings: dict[str, str]) -> None:
    assert lines.settings_above(line + "\n" + BLOCK, CONFIG) == settings


def test_settings_below_the_block_do_not_hold_for_it() -> None:
    text = "A=1\nB=1\nA=2\n" + BLOCK + "B=2\n"
    assert lines.settings_above(text, CONFIG) == {"A": "2", "B": "1"}


def test_the_example_is_what_install_would_write() -> None:
    text = (Path(__file__).parents[4] / "crontab.example").read_text()
    found = crontab.find(text, CONFIG)
    assert found is not None
    assert found.text == BLOCK
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == [LINE.rstrip()]
    staging = Path("/srv/shop-staging/cronjobs.yaml")
    wanted = crontab.block(staging, Path("/srv/shop-staging/.venv/bin/python"))
    commented = crontab.find(text, staging)
    assert commented is not None
    assert commented.text == wanted.replace("* * *", "#* * *", 1)


# ----------------------------------------------------------------------------------------------------------- crontab(1)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.mark.parametrize("mode", ["", "busybox"])
def test_no_crontab_yet_is_an_empty_one(host: Host, mode: str) -> None:
    host.fails(mode)
    assert program.read() == ""


@pytest.mark.parametrize(("mode", "said"), [("denied", "not allowed"), ("spool", "Permission denied")])
def test_a_crontab_that_cannot_be_read_is_not_taken_for_an_empty_one(host: Host, mode: str, said: str) -> None:
    host.has("0 3 * * * backup\n")
    host.fails(mode)
    for arguments in (["install"], ["remove"], ["show"]):
        assert said in str(host.cli(*arguments).exception)
    assert host.crontab == "0 3 * * * backup\n"


def test_without_crontab_the_error_says_what_to_do(host: Host) -> None:
    (host.folder / "bin" / "crontab").unlink()
    os.environ["PATH"] = str(host.folder / "bin")  # monkeypatch puts it back
    with pytest.raises(program.CrontabMissing, match="apt-get install cron"):
        program.read()
    shown = host.cli("show")
    assert shown.exit_code == 0
    assert shown.stdout == host.block
    assert "no crontab command" in shown.stderr


@pytest.mark.parametrize("text", ["0 3 * * * backup", "a\r\nb\r\n", "# \udcff\udcfe \x00 \x0b\u2028\n", "\n\n"])
def test_what_crontab_lists_is_written_back_byte_for_byte(host: Host, text: str) -> None:
    host.has(text)
    program.replace(text, crontab.install(text, host.block, host.config))
    assert host.crontab is not None
    assert host.crontab.startswith(text)
    program.replace(host.crontab, crontab.remove(host.crontab, host.config))
    assert host.crontab == ended(text)


def test_a_crontab_that_changed_in_the_meantime_is_not_overwritten(host: Host) -> None:
    host.has("# theirs\n")
    with pytest.raises(program.CrontabChanged):
        program.replace("", host.block)
    assert host.crontab == "# theirs\n"


def test_a_kill_while_crontab_reads_does_not_cut_the_crontab_off(host: Host) -> None:
    old = "0 4 * * * /usr/local/bin/backup --all\n" * 4000  # more than a pipe holds
    host.has(old)
    reading = host.folder / "reading"
    host.script(
        host.folder / "bin" / "crontab",
        f"""#!/bin/sh
        [ "$1" = -l ] && exec cat "$FAKE_STORE"
        echo $PPID >"{reading}.new" && mv "{reading}.new" "{reading}"
        while kill -0 $PPID 2>/dev/null; do sleep 0.01; done
        cat >"$FAKE_STORE.new" && mv "$FAKE_STORE.new" "$FAKE_STORE" && mv "{reading}" "{reading}.done"
        """,
    )
    script = "from cronjobs.desk.crontab import program as p; old = p.read(); p.replace(old, old + '# new\\n')"
    with started([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as process:
        until(reading.exists)
        process.kill()
    until(Path(f"{reading}.done").exists)
    assert host.crontab == old + "# new\n"


def test_of_commands_that_write_at_once_none_undoes_what_another_has_reported(host: Host) -> None:
    host.script(
        host.folder / "bin" / "crontab",
        """#!/bin/sh
        [ "$1" = -l ] && exec cat "$FAKE_STORE"
        cat >"$FAKE_STORE.$$"; sleep 0.05; mv "$FAKE_STORE.$$" "$FAKE_STORE"
        """,
    )
    host.has("# mine\n")

    def install(name: str) -> None:
        while True:
            old = program.read()
            try:
                return program.replace(old, f"{old}# {name}\n")
            except program.CrontabChanged:
                continue

    names = ["one", "two", "three", "four"]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(install, names))
    assert sorted(str(host.crontab).split("# ")[2:]) == sorted(f"{name}\n" for name in names)


def test_a_text_that_crontab_refuses_is_reported_in_its_words(host: Host) -> None:
    host.fails("refuses")
    with pytest.raises(program.CrontabFailed, match=r'"crontab -" failed with exit code 1: "-":1: bad minute'):
        program.replace("", host.block)
    assert host.crontab is None


def test_a_crontab_program_that_stores_something_else_is_noticed(host: Host) -> None:
    host.fails("mangles")
    with pytest.raises(crontab.CrontabError, match="now shows something else"):
        program.replace("", host.block)


def test_carriage_returns_that_debians_crontab_lists_as_text_are_not_written_back(host: Host) -> None:
    host.has("0 3 * * * backup\\r\n")
    with pytest.raises(crontab.CrontabError, match=r"line 1 .* carriage return"):
        program.replace("0 3 * * * backup\\r\n", "")
    assert host.crontab == "0 3 * * * backup\\r\n"


def test_the_copy_of_a_crontab_is_its_owners_alone_and_kept_once(host: Host) -> None:
    old_umask = os.umask(0)
    try:
        copy = program.keep_copy("PGPASSWORD=x\n")
        assert program.keep_copy("PGPASSWORD=x\n") == copy
    finally:
        os.umask(old_umask)
    assert copy is not None
    assert copy.read_text() == "PGPASSWORD=x\n"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [*copy.parent.iterdir()] == [copy]
    assert program.keep_copy("") is None


def test_a_full_disk_leaves_no_half_copy_of_a_crontab_and_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = program.keep_copy("# old\n@daily a\n")
    assert copy is not None

    class FullDisk(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_full(descriptor: int, mode: str) -> FullDisk:
        os.close(descriptor)
        return FullDisk()

    host.has("# old\n@daily a\n")
    with monkeypatch.context() as patch:
        patch.setattr(program, "open", open_full, raising=False)
        done = host.cli("install")
    assert f"no copy of the old crontab was kept: No space left on device: {copy}\n" in done.stderr
    assert [*copy.parent.iterdir()] == [copy]
    assert copy.read_text() == "# old\n@daily a\n"


# -------------------------------------------------------------------------------------------------- a tick as cron's


def test_the_tick_gets_crons_environment_and_nothing_of_the_shells(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://only-in-the-shell")
    host.ticks(
        f"env >'{host.folder}/env'; pwd >'{host.folder}/pwd'; cat >'{host.folder}/stdin'; echo $* >'{host.folder}/args'"
    )
    text = crontab.install("PGHOST=db1\nMAILTO=ops\nLOGNAME=other\n", host.block, host.config) + "PGPORT=1\n"
    environment = cron_host.environment(text, host.config, root=host.folder)
    tick = cron_host.bare_tick(host.config, host.python, environment, limit=timedelta(seconds=30))
    assert tick == cron_host.BareTick(0, None, "")
    assert not tick.works  # the tick reported nothing
    owner = cron_host.user()
    got = dict(line.split("=", 1) for line in (host.folder / "env").read_text().splitlines())
    assert {name: got[name] for name in got.keys() - {"PWD", "OLDPWD", "SHLVL", "_"}} == {
        "HOME": owner.pw_dir,
        "LOGNAME": owner.pw_name,
        "PATH": "/usr/bin:/bin",
        "SHELL": "/bin/sh",
        "PGHOST": "db1",
        "MAILTO": "ops",
    }
    assert os.path.realpath((host.folder / "pwd").read_text().strip()) == os.path.realpath(owner.pw_dir)
    assert (host.folder / "stdin").read_text() == ""
    assert (host.folder / "args").read_text().strip() == f"-P -m cronjobs run-due --config {host.config} --json"


def test_etc_environment_reaches_cron_where_pam_says_so_but_not_its_path(tmp_path: Path) -> None:
    (tmp_path / "etc" / "pam.d").mkdir(parents=True)
    (tmp_path / "etc" / "environment").write_text(
        '# site\nDATABASE_URL="postgresql://db/shop"\nexport A=b\nPATH=/opt/bin\n'
    )
    (tmp_path / "etc" / "pam.d" / "cron").write_text("# session required pam_env.so\n")
    assert "DATABASE_URL" not in cron_host.environment("", CONFIG, root=tmp_path)
    (tmp_path / "etc" / "pam.d" / "cron").write_text("session       required   pam_env.so\n")
    environment = cron_host.environment("A=c\n", CONFIG, root=tmp_path)
    assert environment["DATABASE_URL"] == "postgresql://db/shop"
    assert environment["A"] == "c"
    assert environment["PATH"] == "/usr/bin:/bin"


def test_a_tick_that_does_not_end_is_ended_with_its_children(host: Host) -> None:
    host.ticks(f"sleep 600 & echo $! >'{host.folder}/pid'; sleep 600")
    environment = cron_host.environment("", host.config)
    tick = cron_host.bare_tick(host.config, host.python, environment, limit=timedelta(seconds=1))
    assert tick.code == 137
    assert "was still running after 1s" in tick.said
    child = int((host.folder / "pid").read_text())
    for _ in range(500):
        if process_started(child) is None:
            break
        clock.sleep(0.01)
    assert process_started(child) is None


def test_a_tick_that_a_signal_ended_has_the_code_a_shell_would_give(host: Host) -> None:
    host.ticks("kill -ALRM $$")
    tick = cron_host.bare_tick(
        host.config, host.python, cron_host.environment("", host.config), limit=timedelta(seconds=30)
    )
    assert tick.code == 142
    assert not tick.works


def test_a_shell_that_is_not_there_is_said(host: Host) -> None:
    environment = cron_host.environment("SHELL=/no/such/shell\n", host.config)
    tick = cron_host.bare_tick(host.config, host.python, environment, limit=timedelta(seconds=30))
    assert (tick.code, tick.said) == (126, "/no/such/shell: No such file or directory")


# ------------------------------------------------------------------------------------------------------ the commands


def test_install_writes_the_block_and_names_the_database_that_cron_reaches(host: Host) -> None:
    host.has("MAILTO=ops@example.com\n0 3 * * * backup\n")
    result = host.cli("install")
    assert result.exit_code == 0, result.output
    assert host.crontab == "MAILTO=ops@example.com\n0 3 * * * backup\n" + host.block
    assert "a tick in cron's environment reached sqlite:////srv/shop/cronjobs.db" in result.stdout
    assert [file.read_text() for file in (host.state / "cronjobs").iterdir()] == [
        "MAILTO=ops@example.com\n0 3 * * * backup\n"
    ]
    again = host.cli("install")
    assert "already has this line" in again.stdout
    assert host.cli("remove").exit_code == 0
    assert host.crontab == "MAILTO=ops@example.com\n0 3 * * * backup\n"


def test_install_names_the_variable_without_which_cron_reaches_another_database(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.config.write_text("database: ${SHOP_URL:-sqlite:////srv/shop/cronjobs.db}\nproject: ${SHOP_NAME:-shop}\n")
    assert "not the database" not in host.cli("install").stderr
    monkeypatch.setenv("SHOP_URL", "postgresql://app:secret-7@db/shop")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.prod")
    monkeypatch.setenv("SHOP_NAME", "staging")
    said = host.cli("install").stderr
    assert "this shell's settings name another database: postgresql://app:***@db/shop" in said
    for line in ("SHOP_URL=…", "DJANGO_SETTINGS_MODULE=shop.prod"):
        assert f"write this line above the block in the crontab: {line}" in said
    assert "secret-7" not in said
    assert "SHOP_NAME" not in said, "the address of the database does not use it"
    host.has("SHOP_URL=postgresql://app:secret-7@db/shop\n")
    assert "SHOP_URL=…" not in host.cli("install").stderr


@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), (4, 4), (2, 1), (127, 1)])
def test_a_tick_that_fails_under_cron_installs_nothing(host: Host, code: int, exit_code: int) -> None:
    host.has("# mine\n")
    host.ticks(f"echo 'DATABASE_URL is not set' >&2; exit {code}")
    result = host.cli("install")
    assert isinstance(result.exception, cron_host.TrialTickFailed)
    assert result.exception.exit_code == exit_code
    assert result.exception.lines[1:] == ["    DATABASE_URL is not set"]
    assert host.crontab == "# mine\n"


def test_force_installs_all_the_same_and_says_what_fails(host: Host) -> None:
    host.ticks("echo 'database postgresql://db/shop cannot be reached' >&2; exit 4")
    result = host.cli("install", "--force")
    assert result.exit_code == 0
    assert host.crontab == host.block
    assert "failed with exit code 4" in result.stderr
    assert "postgresql://db/shop cannot be reached" in result.stderr


def test_a_job_that_dies_in_the_first_tick_does_not_keep_the_line_out(host: Host) -> None:
    host.ticks("""echo hello from a profile; echo '{"ended": "x", "exit_code": 1}'; exit 1""")
    assert host.cli("install").exit_code == 0
    assert host.crontab == host.block


@pytest.mark.parametrize(
    "commands",
    [
        "echo 'No module named cronjobs' >&2; exit 1",
        "exit 0",
        """echo '{"exit_code": 0}'""",
        """echo '{"ended": "nothing is due", "exit_code": 0}'; exit 1""",  # it died on its way out
        """echo '["ended"]'""",
    ],
)
def test_what_does_not_report_as_a_tick_is_not_installed(host: Host, commands: str) -> None:
    """Exit code 1 is also Python's own, for whatever it cannot start."""
    host.ticks(commands)
    result = host.cli("install")
    assert isinstance(result.exception, cron_host.TrialTickFailed)
    assert "did not report what it did" in str(result.exception)
    assert host.crontab is None


@pytest.mark.parametrize("below", ["", "0 4 * * * report"])
def test_a_crontab_without_a_newline_at_its_end_can_be_cleared_of_the_block(host: Host, below: str) -> None:
    """crontab(1) lists such a file, and refuses to take it: "missing newline before EOF"."""
    host.has(crontab.install("0 3 * * * backup", host.block, host.config) + below)
    assert host.cli("remove").exit_code == 0
    assert host.crontab == ended("0 3 * * * backup\n" + below)
    host.has("0 3 * * * backup")
    assert host.cli("install").exit_code == 0
    assert host.cli("remove").exit_code == 0
    assert host.crontab == "0 3 * * * backup\n"


def test_dry_run_shows_a_diff_runs_no_tick_and_changes_nothing(host: Host) -> None:
    host.has("# mine \x1b[2J")
    host.ticks(f"touch '{host.folder}/ticked'")
    result = host.cli("install", "--dry-run")
    assert result.exit_code == 0
    assert f"+# cronjobs begin {host.config}" in result.stdout.splitlines()
    assert "-# mine \\x1b[2J" in result.stdout.splitlines()  # harmless on a terminal
    assert "\x1b" not in result.stdout  # nor colours, where there is none
    assert host.crontab == "# mine \x1b[2J"
    assert not (host.folder / "ticked").exists()
    host.has(host.block)
    assert "nothing would change" in host.cli("install", "--dry-run").stderr
    assert f"-# cronjobs begin {host.config}" in host.cli("remove", "--dry-run").stdout.splitlines()
    assert host.crontab == host.block


def test_the_line_follows_the_configurations_run_every(host: Host) -> None:
    host.config.write_text("database: sqlite:///x.db\nrun: {every: 5m}\n")
    assert host.cli("install").exit_code == 0
    assert host.crontab is not None
    assert host.crontab.splitlines()[1].startswith("*/5 * * * * ")


@pytest.mark.parametrize("state", ["missing", "same", "differs", "broken"])
def test_show_says_how_the_crontab_compares(host: Host, state: str) -> None:
    older = crontab.block(host.config, Path("/opt/old/bin/python"))
    texts = {
        "missing": "# mine\n",
        "same": host.block,
        "differs": older,
        "broken": older.rpartition("# cronjobs end")[0],
    }
    host.has(texts[state])
    shown = host.cli("show")
    assert shown.exit_code == 0
    assert shown.stdout == host.block
    report = json.loads(host.cli("show", "--json").stdout)
    assert report["state"] == state
    assert report["config"] == str(host.config)
    assert report["installed"] == {"same": host.block, "differs": older}.get(state)
    assert shlex.quote(str(host.python)) in report["line"]
    if state == "differs":
        assert "-* * * * * /opt/old/bin/python" in shown.stderr


def test_remove_needs_no_configuration_file_and_is_content_without_a_block(host: Host) -> None:
    host.has("# mine\n")
    result = host.cli("remove", "--config", str(host.folder / "gone.yaml"))
    assert result.exit_code == 0
    assert "nothing to remove" in result.stdout
    assert host.crontab == "# mine\n"


def test_install_says_when_a_failure_would_reach_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_host, "mail_program", lambda: None)
    monkeypatch.setattr(cron_host, "daemon_runs", lambda: False)
    result = host.cli("install")
    assert "cannot send mail" in result.stderr
    assert "cronjobs status" in result.stderr
    assert "no cron daemon is running here" in result.stderr
    monkeypatch.setattr(cron_host, "mail_program", lambda: Path("/usr/sbin/sendmail"))
    monkeypatch.setattr(cron_host, "daemon_runs", lambda: None)  # cannot be known: nothing is said
    host.has('MAILTO=ops@example.com\n@daily a\nMAILTO=""\n@daily b\nA=1\n')
    result = host.cli("install")
    assert 'line 3 of the crontab sets MAILTO="" above this block' in result.stderr
    assert "move the block above that line" in result.stderr
    assert "daemon" not in result.stderr


def test_a_new_block_goes_above_a_last_setting_that_turns_mail_off(host: Host) -> None:
    old = 'PATH=/bin\nMAILTO=ops@example.com\n@daily a\nMAILTO=""\n@daily b # MAILTO=x\n'
    host.has(old)
    result = host.cli("install")
    assert host.crontab == old.replace('MAILTO=""', f'{host.block}MAILTO=""')
    assert "MAILTO=" not in result.stderr
    assert host.cli("remove").exit_code == 0
    assert host.crontab == old


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MAILTO=ops\n@daily a\n",
        'MAILTO=""\nPATH=/bin\n@daily a\n',  # the block needs the settings below MAILTO
        '# cronjobs begin /srv/x.yaml\nMAILTO=""\n# cronjobs end /srv/x.yaml\n',
    ],
)
def test_any_other_new_block_goes_to_the_end(text: str) -> None:
    assert lines.place_of_block(text) is None


def test_config_may_stand_before_the_commands_name(host: Host) -> None:
    root = typer.Typer()
    root.add_typer(commands.app, name="crontab")

    @root.callback()
    def options(config: Annotated[Path | None, typer.Option("--config")] = None) -> None:
        pass

    (host.folder / "other.yaml").write_text("database: sqlite:///x.db\n")
    before = ["--config", str(host.folder / "other.yaml"), "crontab", "show", "--json"]
    assert json.loads(CliRunner().invoke(root, before).stdout)["config"] == str(host.folder / "other.yaml")
    behind = [*before, "--config", str(host.config)]
    assert json.loads(CliRunner().invoke(root, behind).stdout)["config"] == str(host.config)


def test_another_spelling_of_the_same_file_in_the_crontab_is_said(host: Host) -> None:
    (host.folder / "link").symlink_to(host.folder)
    other = host.folder / "link" / "cronjobs.yaml"
    host.has(crontab.block(other, host.python))
    assert f"crontab remove --config {other}" in host.cli("install").stderr


def test_a_line_outside_the_block_that_starts_ticks_with_this_file_is_named(host: Host) -> None:
    by_hand = f"* * * * * {host.python} -P -m cronjobs run-due --config {host.config}\n"
    host.has(f"# mine\n{by_hand}0 3 * * * cat {host.config}\n")
    assert lines_by_hand(host.crontab or "", host.config) == [2]
    assert "line 2 of the crontab starts ticks with this file, too" in host.cli("install").stderr
    assert lines_by_hand(host.crontab or "", host.config) == [2]  # not the block that is there now
    host.has(host.block + by_hand)
    assert lines_by_hand(host.crontab or "", host.config) == [4]
    host.has(crontab.block(host.folder / "other.yaml", host.python))
    assert lines_by_hand(host.crontab or "", host.config) == []


def release(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "cronjobs.yaml").write_text(text)
    return folder / "cronjobs.yaml"


def test_the_block_of_an_earlier_release_is_named_with_the_command_that_removes_it(host: Host) -> None:
    shared = f"project: shop\ndatabase: sqlite:///{host.folder}/shop.db\n"
    host.config.write_text(shared)
    others = {
        "release 1": shared,
        "unset": shared.replace("shop.db", "${NOT_SET}"),
        "own-database": "project: shop\ndatabase: sqlite:///shop.db\n",
        "own-project": shared.replace("project: shop", "project: other"),
        "staging": f"environment: staging\n{shared}",
    }
    files = {name: release(host.folder / name, text) for name, text in others.items()}
    gone = host.folder / "gone" / "cronjobs.yaml"
    host.has("".join(crontab.block(file, host.python) for file in (*files.values(), gone)))
    said = host.cli("install").stderr
    assert f"{files['release 1']}, whose ticks reach the same project and database" in said
    assert f"cronjobs crontab remove --config '{files['release 1']}'" in said
    for failing in (files["unset"], gone):
        assert f"{failing}, whose ticks fail (" in said
    assert not [name for name in ("own-database", "own-project", "staging") if str(files[name]) in said]


def test_a_database_is_the_same_whoever_connects_to_it(host: Host) -> None:
    host.config.write_text("project: shop\ndatabase: postgresql://new:secret@db/shop\n")
    old = release(host.folder / "old", "project: shop\ndatabase: postgresql+psycopg2://app@db:5432/shop\n")
    far = release(host.folder / "far", "project: shop\ndatabase: postgresql://new:secret@db/shop\nschema: cron\n")
    host.has(crontab.block(old, host.python) + crontab.block(far, host.python))
    said = host.cli("install").stderr
    assert f"crontab remove --config {old}" in said
    assert str(far) not in said
    assert "secret" not in said


def test_mail_needs_the_program_that_cron_calls(tmp_path: Path) -> None:
    assert cron_host.mail_program(tmp_path) is None
    sendmail = tmp_path / "usr" / "sbin" / "sendmail"
    sendmail.parent.mkdir(parents=True)
    sendmail.write_text("")
    assert cron_host.mail_program(tmp_path) is None  # not executable
    sendmail.chmod(0o755)
    assert cron_host.mail_program(tmp_path) == sendmail


def test_a_cron_daemon_is_looked_for_among_the_processes(tmp_path: Path) -> None:
    assert cron_host.daemon_runs(tmp_path) is None  # no /proc, or a process 1 that is hidden from us (hidepid)
    for pid, name in (("1", "init"), ("17", "crony"), ("net", "cron")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "comm").write_text(f"{name}\n")
    assert cron_host.daemon_runs(tmp_path) is False
    (tmp_path / "proc" / "17" / "comm").write_text("crond\n")
    assert cron_host.daemon_runs(tmp_path) is True
