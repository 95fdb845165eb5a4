"""An existing crontab is imported with the meaning it has under cron, compared, swapped, and restored byte for byte."""

from __future__ import annotations

import json
import pwd
import random
import re
import socket
import stat
import string
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import judge
from support.configfile import read as read_config
from support.cronhost import Host
from support.crontabs.sandbox import CRONTABS, furnish
from typer.testing import Result

from cronjobs.contrib.take_over import cli, swap_cli
from cronjobs.contrib.take_over.as_yaml import as_yaml
from cronjobs.contrib.take_over.cli import _is_system_crontab
from cronjobs.contrib.take_over.comparing import paired
from cronjobs.contrib.take_over.convert_lines import ImportedCrontab, ImportedLine, Importer, names_users
from cronjobs.desk.cli import crontab as crontab_cli
from cronjobs.desk.crontab import block, host, swapping
from cronjobs.desk.crontab.lines import Cron
from cronjobs.desk.crontab.naming import name_of
from cronjobs.desk.crontab.other_blocks import runs_twice
from cronjobs.engine.command.database import ready_database
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.writing import written
from cronjobs.engine.probe.sql_text import NOW
from cronjobs.engine.schedules.sync import sync
from cronjobs.engine.store.sql import run
from cronjobs.errors import ConfigError, UsageError
from cronjobs.model import RetryPolicy
from cronjobs.testing import FakeClock

OWNER = pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/home/ada", "/bin/bash"))
CONFIG = Path("/srv/shop/cronjobs.yaml")
EARLY = datetime(2027, 1, 15, 9, 0, 10, tzinfo=UTC)


def take_over(crontab: str, cron: Cron = "debian", **changes: Any) -> ImportedCrontab:
    return Importer(OWNER, "Europe/Berlin", cron, **changes).convert(crontab)


def one(crontab: str, cron: Cron = "debian", **changes: Any) -> ImportedLine:
    [found] = take_over(crontab, cron, **changes).taken
    return found


@pytest.fixture
def cron_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host in Berlin whose minute has just begun, and a shell in an empty folder."""
    found = Host(tmp_path, monkeypatch)
    found.config.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setattr(swap_cli, "SYSTEM", FakeClock(EARLY))
    return found


# --- a line -----------------------------------------------------------------------------------------------------------


def test_a_line_keeps_its_shell_folder_and_the_environment_that_stands_above_it() -> None:
    text = "A=1\nSHELL=/bin/bash\nLOGNAME=eve\n5 4 * * * backup\nA=2\nHOME=/srv\n"
    found = one(text, from_pam=["LANG", "A"])
    assert found.command == ("/bin/bash", "-c", "backup")
    assert found.folder == "/home/ada"
    env = {"SHELL": "/bin/bash", "HOME": "/home/ada", "PATH": "/usr/bin:/bin", "A": "1", "LOGNAME": "ada"}
    assert dict(found.env) == env
    assert found.inherited == ("LANG",)
    cronie = one("HOME=/srv\n5 4 * * * backup\n", "cronie")
    assert cronie.folder == "/srv"
    assert dict(cronie.env) == {
        "SHELL": "/bin/sh",
        "HOME": "/srv",
        "LOGNAME": "ada",
        "USER": "ada",
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    }


def test_cron_tz_counts_for_cronie_only() -> None:
    text = "CRON_TZ=Asia/Tokyo\n0 9 * * * report\n"
    assert (one(text).timezone, dict(one(text).env)["CRON_TZ"]) == ("Europe/Berlin", "Asia/Tokyo")
    assert "import it with --cron cronie" in take_over(text).notes[0]
    assert one(text, "cronie").timezone == "Asia/Tokyo"
    assert take_over(text, "cronie").notes == ()


@pytest.mark.parametrize(
    ("line", "why", "cron"),
    [
        ("@reboot up", "only the cron daemon notices that the machine starts (@reboot)", "debian"),
        ("61 * * * * x", 'cron cannot read it: minute "61": 61 is not in 0-59', "debian"),
        ("0 0 30 2 * x", "cronjobs has no expression for it: day 30 never comes in feb", "debian"),
        ("0 0 * * fri-sun x", "cronjobs has no expression for it: one of the line's ranges runs backwards", "debian"),
        ("*/7,3 * * * * x", 'cronjobs has no expression for it: a field lists "*" with other values', "debian"),
        ("~ * * * * x", 'cron cannot read it: minute "~": cronie chooses the time at random', "cronie"),
        ("CRON_TZ=Mars/Base\n0 1 * * * x", 'CRON_TZ="Mars/Base" is not a time zone', "cronie"),
        ("HOME=here\n0 1 * * * x", 'HOME="here" is not an absolute path', "debian"),
        ("SHELL=bash\n0 1 * * * x", 'SHELL="bash" is not an absolute path', "debian"),
        ("0 1 * * * x \udcff", "the line, or a setting above it, is not valid UTF-8", "debian"),
        ("* * * * * /venv/bin/cronjobs run-due", "the line starts cronjobs' own tick", "debian"),
        ("* * * * * /venv/bin/python -P -m cronjobs exec a -c b", 'the line is wrapped in "cronjobs exec"', "debian"),
        ("* * * * * cronjobs --config x exec a -- b", 'the line is wrapped in "cronjobs exec"', "debian"),
        ("* * * * * /venv/bin/cronjobs exec a -- b", 'the line is wrapped in "cronjobs exec"', "debian"),
        ("1 2 3", "cron cannot read it: the line is neither a setting nor", "debian"),
    ],
)
def test_what_cannot_be_taken_over_is_left_and_named(line: str, why: str, cron: Cron) -> None:
    found = take_over(line + "\n", cron)
    assert found.taken == ()
    [left] = found.left
    assert left.text == line.rpartition("\n")[2]
    assert left.why.startswith(why)


@pytest.mark.parametrize(
    ("when", "cron", "ours"),
    [
        ("*/90 1,2 * * *", "debian", "*/60 1,2 * * *"),
        ("5 *,3 * * mon", "debian", "5 * * * 1"),
        ("0 0 * * fri-sun", "cronie", "0 0 1-31 * 0,5,6"),
        ("7-7 0-23 * 1-12 5,5", "debian", "7-7 0-23 * 1-12 5,5"),
        ("0 0 * * *", "debian", "0 0 * * *"),
    ],
)
def test_an_expression_that_ours_refuses_is_written_otherwise(when: str, cron: Cron, ours: str) -> None:
    expected = ours.replace("1-31", "*") if cron == "cronie" else ours
    assert one(f"{when} x\n", cron).cron == expected


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cd / && run-parts --report /etc/cron.daily", "run-parts-cron.daily"),
        ("test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.weekly; }", "run-parts-cron.weekly"),
        ("/usr/bin/php /srv/www/artisan schedule:run >> /dev/null 2>&1", "artisan-schedule-run"),
        ("[ -x /usr/bin/x ] && PGHOST=db1 sudo -u postgres nice -n 10 /usr/bin/pg_dump app", "pg_dump-app"),
        ("/srv/shop/venv/bin/python /srv/shop/manage.py clearsessions", "manage-clearsessions"),
        ("flock -n /tmp/lock /usr/local/bin/sync.sh", "sync"),
        ("'unclosed quote", "unclosed-quote"),
        ("!!!", "line"),
        ("export A=1; umask 077; if true; then backup; fi", "backup"),
        ("command -v tidy >/dev/null && . ./env.sh; tidy all", "tidy-all"),
        ("java -jar /opt/report.jar", "report"),
        ("flock -n /tmp/lock sh -c 'sleep 3; date +x >> /tmp/x'", "date"),
        ('/bin/bash -lc "cd / && backup all" >/dev/null', "backup-all"),
        ('echo "begin; a|b" >> log; ls /backup', "ls"),
        ("echo tick >> log", "echo-tick"),
    ],
)
def test_a_schedule_is_named_after_the_program_that_the_line_runs(command: str, name: str) -> None:
    assert name_of(command) == name


def test_names_are_given_once() -> None:
    assert [each.name for each in take_over("@daily a\n@hourly a\n@weekly a\n").taken] == ["a", "a-2", "a-3"]


def test_an_address_of_mailto_becomes_a_channel_once() -> None:
    text = "MAILTO=ops@example.com, ada\n1 1 * * * a\nMAILTO=ops@example.com\n2 2 * * * b\nMAILTO=$X\n3 3 * * * c\n"
    found = take_over(text + "MAILTO=nobody@example.com\n")
    assert found.mail_to == ("ops@example.com", "ada@localhost")
    assert found.notes == ('MAILTO contains "$X", which is not a mail address, so it is left out of "alerts"',)


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_characters="\0\ue000", exclude_categories=["Cs"])))
def test_any_text_is_written_so_that_the_file_gives_it_back(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        yaml = f"job_types: {{a: {{command: [x, {written(text)}], stdin: {written(text, plain=False)}}}}}"
        found = read_config(f"database: sqlite:///x.db\n{yaml}\n")
    assert found.problems == ()
    assert (found.job_types["a"].command, found.job_types["a"].stdin) == (("x", text), text)


WORDS = "true True yes NO on off y N null NULL ~ none 1e3 0x10 0o7 1_000 .inf 2026-01-01 12:30:00 a:b #x = << - a/b -1"


@pytest.mark.parametrize("text", [*WORDS.split(), "", "a: b", "a #x", " a", "${HOME}"])
def test_no_word_is_a_boolean_or_a_number_to_another_reader_of_yaml(text: str) -> None:
    """Ours reads texts; those of YAML 1.1 read ``no`` as a boolean, those of YAML 1.2 ``1e3`` as a number."""
    name = written(text)
    assert yaml.safe_load(f"{{{name}: [{name}]}}") == {text.replace("${", "$${"): [text.replace("${", "$${")]}
    assert name[:1] in "'\"" or text in ("a/b",)


@settings(max_examples=100, deadline=None)
@given(st.text(string.ascii_letters + string.digits + "+-._:~ ", max_size=6))
def test_any_short_word_is_read_back_by_another_reader_of_yaml(text: str) -> None:
    assert yaml.safe_load(f"{written(text)}: {written(text)}") == {text: text}


def test_words_of_a_crontab_that_yaml_has_for_itself_are_quoted() -> None:
    found = take_over("ON=off\n@daily true\nON=no\n@daily /bin/yes\n")
    read = yaml.safe_load(as_yaml(found, of="a crontab", timezone="UTC", sender="a@b"))
    assert [*read["schedules"]] == ["true", "yes"]
    assert [*read["job_types"]] == [read["schedules"]["yes"]["job"]] == ["yes"]
    assert read["defaults"]["commands"]["env"]["ON"] == "off"
    assert read["job_types"]["yes"]["env"]["ON"] == "no"


def test_what_most_lines_have_stands_once() -> None:
    lines = "".join(f"{minute} 2 * * * /opt/app/run {minute}\n" for minute in range(12))
    text = as_yaml(take_over(f"PATH=/bin\n{lines}3 3 * * * cat%x\n"), of="it", timezone="Europe/Berlin", sender="a@b")
    assert [text.count(f"\n    {key}:") for key in ("env", "timeout", "inherit_env", "catch_up", "overlap")] == [1] * 5
    assert text.count("/opt/app/run") == 12
    assert len(text.splitlines()) < 70


# --- import -----------------------------------------------------------------------------------------------------------


def imported(cron_host: Host, crontab: str, *options: str) -> Settings:
    cron_host.has(crontab)
    result = cron_host.cli("import", *options)
    assert result.exit_code == 0, result.output
    found = read_config(cron_host.config.read_bytes())
    assert found.problems == ()
    return found


def test_an_imported_line_is_an_entry_with_crons_meaning(cron_host: Host) -> None:
    found = imported(cron_host, 'PATH=/opt/bin:/bin\n# at night\n15 2 * * *  mail -s "${X} 5\\%" joe%Hi%$${Y}\n')
    entry, schedule = found.job_types["mail"], found.schedules["mail"]
    assert entry.command == ("/bin/sh", "-c", 'mail -s "${X} 5%" joe')
    assert entry.stdin == "Hi\n$${Y}\n"
    assert entry.run_in == Path(host.user().pw_dir)
    assert dict(entry.env)["PATH"] == "/opt/bin:/bin"
    assert entry.inherit_env is not None
    assert entry.timeout == timedelta(hours=24)
    assert entry.retry.apply(RetryPolicy()).max_attempts == 1
    assert (entry.on_lost, entry.leftovers) == ("dead", "leave")
    assert (schedule.cron, schedule.catch_up, schedule.overlap) == ("15 2 * * *", "none", "allow")
    assert (found.timezone, schedule.timezone) == ("Europe/Berlin", "Europe/Berlin")
    assert found.database == f"sqlite:///{cron_host.folder}/cronjobs.db"
    assert stat.S_IMODE(cron_host.config.stat().st_mode) == 0o600
    text = cron_host.config.read_text()
    for said in ("# at night", '# "catch_up: latest"', '# "overlap: skip"', '# "retry: {max_attempts: 3}"'):
        assert text.count(said) == 1


def test_slow_lines_leave_places_for_the_others_and_none_reads_a_payload(cron_host: Host) -> None:
    found = imported(cron_host, "".join(f"{minute} * * * * true {minute}\n" for minute in range(12)))
    assert found.run.long_jobs == 120
    assert {entry.stdin for entry in found.job_types.values()} == {""}
    assert len(found.schedules) == 12


def test_import_reads_standard_input_and_writes_standard_output(cron_host: Host) -> None:
    result = cron_host.cli("import", "--file", "-", "--out", "-", stdin=b"@daily a\n@reboot b\n")
    assert result.exit_code == 0
    assert ("Europe/Berlin comes from $TZ" in result.stderr) is (host_timezone(environ={}) != "Europe/Berlin")
    assert "line 2 stays in the crontab" in result.stderr
    assert not cron_host.config.exists()
    found = read_config(result.stdout)
    assert [each.cron for each in found.schedules.values()] == ["@daily"]
    again = cron_host.cli("compare", "--file", "-", "--days", "1", stdin=b"@daily a\n")
    assert again.exit_code == 0


def test_import_says_that_no_mail_server_is_there_for_mailto(cron_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as server:
        monkeypatch.setattr(cli, "SMTP_PORT", server.getsockname()[1])
        cron_host.has("MAILTO=ops@example.com\n0 5 * * * a\n")
        assert "mail server" not in cron_host.cli("import", "--out", "-").stderr
    assert "no mail server answers on port" in cron_host.cli("import", "--out", "-").stderr
    cron_host.has("0 5 * * * a\n")
    assert "mail server" not in cron_host.cli("import", "--out", "-").stderr


def test_standard_output_gets_no_secret(cron_host: Host) -> None:
    cron_host.has("PGPASSWORD=hunter2hunter2\n@daily pg_dump\n")
    result = cron_host.cli("import", "--out", "-")
    assert "hunter2" not in result.output
    assert 'PGPASSWORD: "${CRON_PGPASSWORD}"' in result.stdout
    assert "not printed: the values of CRON_PGPASSWORD. Put them into the file that env_file names" in result.stderr


@pytest.mark.parametrize("command", ["import", "compare"])
def test_a_system_crontab_is_refused(cron_host: Host, command: str) -> None:
    imported(cron_host, "@daily x\n")
    copy = cron_host.folder / "shop"
    copy.write_text("SHELL=/bin/sh\n15 2 * * * root /srv/shop/backup\n@reboot nobody cd / && ./warm-up\n")
    for file in (str(copy), "-"):
        result = cron_host.cli(command, "--file", file, stdin=copy.read_bytes())
        assert isinstance(result.exception, UsageError)
        assert "name a user before the command" in str(result.exception)
        assert "Take the lines out of the file, remove the user's name, add them" in str(result.exception)


@pytest.mark.parametrize(
    ("file", "is_one"),
    [("/etc/crontab", True), ("/etc/cron.d/shop", True), ("/etc/cron.d/../crontab", True), ("/srv/crontab", False)],
)
def test_a_system_crontab_is_known_by_its_place(file: str, is_one: bool) -> None:
    assert _is_system_crontab(file) is is_one


def test_lines_are_not_of_a_system_crontab_because_one_names_a_user() -> None:
    users = {"backup", "root"}.__contains__
    assert names_users("0 1 * * * root /a\n0 2 * * * backup b\n", users)
    assert not names_users("0 1 * * * root /a\n0 2 * * * /b c\n", users)
    assert not names_users("0 1 * * * backup\n", users)
    assert not names_users("A=1\n", users)


def test_a_secret_is_written_once_where_only_the_user_reads_it(cron_host: Host) -> None:
    """Random values, as cron's crontab can hold them: each line gets what cron gave it."""

    def case(dice: random.Random) -> None:
        for file in (cron_host.config, cron_host.config.with_suffix(".env")):
            file.unlink(missing_ok=True)
        signs = "abc'\"\\$#{}=%!` é*&?:/@-"
        secrets = ["".join(dice.choices(signs, k=dice.randint(1, 30))) for _ in range(2)]
        secrets = [each.strip(" '\"") or "x" for each in secrets]  # cron takes these away
        lines = [f"DB_PASSWORD={secrets[0]}\n", "TZ_NAME=Berlin\n", "* * * * * a\n* * * * * b\n"]
        lines += [f"DB_PASSWORD={secrets[1]}\nURL=https://me:{'pw' * 5}@example.com/\n", "* * * * * c\n"]
        cron_host.has("".join(lines))
        assert cron_host.cli("import").exit_code == 0
        found = load(cron_host.config, environ={})
        got = {name: dict(entry.env) for name, entry in found.job_types.items()}
        assert [got[name]["DB_PASSWORD"] for name in "abc"] == [secrets[0], secrets[0], secrets[1]]
        assert got["c"]["URL"] == f"https://me:{'pw' * 5}@example.com/"
        text, kept = cron_host.config.read_text(), cron_host.config.with_suffix(".env")
        assert (text.count("${CRON_DB_PASSWORD}"), text.count("${CRON_URL}"), "pwpw" in text) == (
            1 + (secrets[0] == secrets[1]),
            1,
            False,
        )
        assert text.count("TZ_NAME: Berlin") == 2  # of most lines, and of the third
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600

    judge(case, 20)


def test_two_values_of_a_name_never_take_the_variable_of_another_name(cron_host: Host) -> None:
    values = ["first-secret", "second-secret", "third-secret"]
    lines = [
        f"API_KEY={values[0]}\n* * * * * a\n",
        f"API_KEY={values[1]}\nCRON_API_KEY_2=x\nAPI_KEY_2={values[2]}\n* * * * * b\n",
    ]
    cron_host.has("".join(lines))
    assert cron_host.cli("import").exit_code == 0
    got = {name: dict(entry.env) for name, entry in load(cron_host.config, environ={}).job_types.items()}
    assert got["a"]["API_KEY"] == values[0]
    assert [got["b"][name] for name in ("API_KEY", "API_KEY_2")] == values[1:]


def test_a_secret_rotated_in_the_env_file_wins_over_the_old_one_in_the_crontab(cron_host: Host) -> None:
    """After swap, cron gives the tick the crontab's settings, and the environment wins over the env file."""
    cron_host.has("DB_PASSWORD=first-secret\n@daily a\n")
    assert cron_host.cli("import").exit_code == 0
    kept = cron_host.config.with_suffix(".env")
    kept.write_text(kept.read_text().replace("first-secret", "second-secret"))
    under_cron = load(cron_host.config, environ={"DB_PASSWORD": "first-secret"})
    assert dict(under_cron.job_types["a"].env)["DB_PASSWORD"] == "second-secret"


def test_lines_with_carriage_returns_are_not_imported(cron_host: Host) -> None:
    """Debian's crontab -l prints them as text; swap would refuse them later."""
    cron_host.has("@daily a\n@hourly b\\r\n")
    refused = cron_host.cli("import").exception
    assert isinstance(refused, block.CrontabError)
    assert "line 2 of the crontab ends in a carriage return" in str(refused)
    assert r"to Unix line endings: crontab -l | sed 's/\\r$//' | crontab -" in str(refused)
    assert not cron_host.config.exists()


def test_an_env_file_that_is_there_is_not_touched(cron_host: Host) -> None:
    kept = cron_host.config.with_suffix(".env")
    kept.write_text("MINE=1\n")
    cron_host.has("API_KEY=abcdefgh12\n@daily a\n")
    again = cron_host.cli("import")
    assert isinstance(again.exception, UsageError)
    assert (kept.read_text(), cron_host.config.exists()) == ("MINE=1\n", False)


def test_import_overwrites_nothing_and_says_what_cron_cannot_read(cron_host: Host) -> None:
    cron_host.has("@daily a\n61 * * * * b\n@reboot c\n")
    result = cron_host.cli("import", "--out", "new.yaml")
    assert result.exit_code == 1
    assert 'line 2 stays in the crontab (cron cannot read it: minute "61"' in result.stderr
    assert "line 3 stays in the crontab (only the cron daemon notices that the machine starts" in result.stderr
    assert "wrote new.yaml: 1 line taken over, 2 left" in result.stdout
    before = Path("new.yaml").read_bytes()
    again = cron_host.cli("import", "--out", "new.yaml")
    assert isinstance(again.exception, UsageError)
    assert "import overwrites no file" in str(again.exception)
    assert Path("new.yaml").read_bytes() == before


def test_import_writes_no_file_where_it_takes_nothing_over(cron_host: Host) -> None:
    """An empty cronjobs.yaml would be in the way of the next import, and make the folder a project for wrap."""
    cron_host.has("@reboot a\n@daily /opt/bin/cronjobs exec b -c 'b'\n")
    result = cron_host.cli("import")
    assert isinstance(result.exception, block.CrontabError)
    assert "nothing was written" in str(result.exception)
    assert "line 2 stays in the crontab (the line is wrapped" in result.stderr
    assert not cron_host.config.exists()


CRONTAB_LINES = st.one_of(
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])),
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])).map("* * * * * ".__add__),
    st.text("%\\ ab'\"$;{}#:,[]", max_size=12).map("@daily x".__add__),
    st.sampled_from(["null", "~", "true", "1e5", "'", "-", "<<", "${HOME}", "a: b", "x\r", "\udcff", "cd /;"]).map(
        "1 2 * * * ".__add__
    ),
    st.tuples(
        st.sampled_from(["A", "SHELL", "HOME", "MAILTO", "a.b"]),
        st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=8),
    ).map("=".join),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(CRONTAB_LINES, min_size=1, max_size=8))
def test_whatever_the_crontab_the_file_can_be_used_and_has_a_schedule_for_each_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    found = take_over("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        read = read_config(as_yaml(found, of="a\nb", timezone="Europe/Berlin", sender="ada@example.com"))
    assert read.problems == ()
    pairs = paired(found.taken, read)
    assert all(pair.same_command and pair.schedule and pair.schedule.name == pair.taken.name for pair in pairs)
    for each in found.taken:
        entry = read.job_types[each.name]
        assert (str(entry.run_in), dict(entry.env)) == (each.folder, dict(each.env))


# --- compare ----------------------------------------------------------------------------------------------------------


def compared(cron_host: Host, *options: str, code: int = 0) -> dict[str, Any]:
    result = cron_host.cli("compare", "--json", "--from", "2027-03-27T00:00", "--days", "3", *options)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_compare_does_not_call_it_the_same_where_no_line_can_be_read(cron_host: Host) -> None:
    cron_host.config.write_text("database: sqlite:///cronjobs.db\n")
    cron_host.has("61 * * * * /opt/bin/x\nnonsense\n@reboot /opt/bin/y\n")
    assert compared(cron_host, code=1)["lines"] == 0
    result = cron_host.cli("compare")
    assert result.exit_code == 1
    assert "the crontab has no line to compare" in result.output


def test_compare_lists_what_cron_does_otherwise_in_the_skipped_hour(cron_host: Host) -> None:
    imported(cron_host, "0,30 2 * * * twice\n15 2 * * * once\n*/5 * * * * often\n")
    found = compared(cron_host, code=1)
    assert (found["lines"], found["same"]) == (3, 2)
    [difference] = found["differences"]
    assert (difference["line"], difference["schedule"], difference["count"]) == (1, "twice", 1)
    assert difference["instants"] == [{"at": "2027-03-28T01:00:00+00:00", "cron": 2, "cronjobs": 1}]
    text = cron_host.cli("compare", "--from", "2027-03-27T00:00", "--days", "3")
    assert text.exit_code == 1
    assert "Sun 2027-03-28 03:00 +0200  cron starts it 2 times, cronjobs starts it once" in text.stdout
    assert "1 of 3 lines differ in the next 3 days" in text.stdout
    assert compared(cron_host, "--days", "1")["same"] == 3


@pytest.mark.parametrize(
    ("old", "new", "reason", "count"),
    [
        ('cron: "0 5 * * *"', 'cron: "0 6 * * *"', "cron and the schedule are not due at the same times", 6),
        (
            'cron: "0 5 * * *"',
            'cron: "0 5 * * *"\n    spread: 1h',
            "cron and the schedule are not due at the same times",
            6,
        ),
        ('"-c", a]', '"-c", b]', "the schedule runs something else", 0),
        ("stdin: none", 'stdin: "x"', "the schedule runs something else", 0),
    ],
)
def test_an_entry_that_was_changed_since_is_a_difference(
    cron_host: Host, old: str, new: str, reason: str, count: int
) -> None:
    imported(cron_host, "0 5 * * * a\n")
    text = cron_host.config.read_text()
    assert old in text
    cron_host.config.write_text(text.replace(old, new))
    [difference] = compared(cron_host, code=1)["differences"]
    assert difference["reason"].startswith(reason)
    assert difference["count"] == count


def test_settings_that_changed_since_the_import_are_a_difference_and_swap_refuses(cron_host: Host) -> None:
    old = "PATH=/usr/bin:/bin\nMAILTO=ops@example.com\nDB_PASSWORD=first-secret\n0 5 * * * a\n0 6 * * * b\n"
    imported(cron_host, old)
    assert compared(cron_host)["differences"] == []
    new = old.replace("PATH=", "PATH=/opt/bin:").replace("ops@", "dev@").replace("first-", "second-")
    cron_host.has(new)
    found = compared(cron_host, code=1)
    reason = "the crontab and the schedule set these variables to different values: PATH, MAILTO, DB_PASSWORD"
    assert [each["reason"] for each in found["differences"]] == [reason, reason]
    refused = cron_host.cli("swap").exception
    assert isinstance(refused, block.CrontabError)
    assert f"line 4 (a): {reason}; line 5 (b): {reason}. Nothing was changed" in str(refused)
    assert "to change secrets, edit the env_file" in str(refused)
    assert 'Alerts go to the addresses under "alerts", whatever MAILTO says. "cronjobs' in str(refused)
    assert "secret" not in str(found) + str(refused).replace("secrets", "")
    assert cron_host.crontab == new
    swapped(cron_host, "--yes")


def test_swap_refuses_a_line_whose_time_differs_from_its_schedule_as_compare_does(cron_host: Host) -> None:
    imported(cron_host, "0 5 * * * a\n0,30 2 * * * b\n")
    swapped(cron_host)  # cron runs b twice after the skipped hour, and a schedule cannot
    cron_host.cli("restore")
    cron_host.has("00 5 * * * a\n0,30 2 * * * b\n")
    swapped(cron_host, "--dry-run")  # the same times in other words
    new = "30 5 * * * a\n0,30 2 * * * b\n"
    cron_host.has(new)
    [difference] = [each for each in compared(cron_host, code=1)["differences"] if each["schedule"] == "a"]
    for option in ((), ("--dry-run",)):
        refused = cron_host.cli("swap", *option).exception
        assert isinstance(refused, block.CrontabError)
        assert f"line 1 (a): {difference['reason']}. Nothing was changed: correct the schedules, or add" in str(refused)
        assert "Alerts" not in str(refused)
        assert "line 2" not in str(refused)
        assert cron_host.crontab == new
    swapped(cron_host, "--yes")


def test_a_variable_that_only_the_schedule_has_is_no_difference(cron_host: Host) -> None:
    imported(cron_host, "0 5 * * * a\n")
    text = cron_host.config.read_text()
    cron_host.config.write_text(text.replace("env: {", "env: {MORE: x, "))
    assert compared(cron_host)["differences"] == []
    swapped(cron_host)


def test_a_line_without_a_schedule_is_listed_and_no_difference(cron_host: Host) -> None:
    imported(cron_host, "0 5 * * * a\n0 6 * * * b\n")
    text = cron_host.config.read_text()
    cron_host.config.write_text(text.replace("\n  a:   # line 1\n", "\n  z:\n    environments: [staging]\n"))
    found = compared(cron_host)
    assert found == {
        "lines": 1,
        "same": 1,
        "differences": [],
        "without_schedule": [{"line": 1, "text": "0 5 * * * a"}],
    }
    said = cron_host.cli("compare", "--days", "3").stdout
    assert "line 1 stays with cron (no schedule runs it): 0 5 * * * a" in said
    assert "no differences: 1 line, each due at the same instants for 3 days" in said
    cron_host.has("0 5 * * * a\n")
    assert compared(cron_host, code=1)["lines"] == 0


def test_a_line_finds_its_schedule_by_what_it_runs_also_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = take_over("1 1 * * * a\n2 2 * * * a\n3 3 * * * b\n").taken
    text = "database: sqlite:///x.db\njob_types:\n"
    for name, command in (("one", "a"), ("two", "a"), ("b", "c")):
        text += f"  {name}: {{command: [/bin/sh, -c, {command}], stdin: none}}\n"
    text += 'schedules:\n  one: {cron: "2 2 * * *", job: one}\n  two: {cron: "1 1 * * *", job: two}\n'
    text += '  b: {cron: "3 3 * * *", job: b}\n'
    monkeypatch.chdir(tmp_path)
    pairs = paired(taken, read_config(text))
    assert [(pair.schedule.name if pair.schedule else None, pair.same_command) for pair in pairs] == [
        ("two", True),
        ("one", True),
        ("b", False),
    ]


# --- swap and restore -------------------------------------------------------------------------------------------------

LINES = st.one_of(
    st.text(st.characters(exclude_characters="\n")),
    st.sampled_from(["", "15 2 * * * backup", "# cronjobs swapped /srv/blog/cronjobs.yaml: @daily x", "A=1\r"]),
    st.just(block.block(Path("/srv/blog/cronjobs.yaml"), Path("/venv/bin/python")).rstrip()),
)
BLOCK = block.block(CONFIG, Path("/venv/bin/python"))


@given(st.lists(LINES, min_size=1), st.data(), st.booleans())
def test_restore_gives_any_crontab_back_byte_for_byte(lines: list[str], data: Any, had_block: bool) -> None:
    old = "\n".join(lines) + "\n" + (BLOCK if had_block else "")
    numbers = data.draw(st.sets(st.integers(1, len(lines)), min_size=1))
    begun = [number for number in numbers if "\n" not in lines[number - 1]]
    new = swapping.swap(old, begun, BLOCK, CONFIG)
    if begun:
        assert swapping.restore(new, CONFIG) == "\n".join(lines) + "\n"
        assert block.find(new, CONFIG) is not None


REPORTS = """echo '{"exit_code": 0, "ended": "nothing is due"}'"""


def swapped(cron_host: Host, *options: str) -> Result:
    result = cron_host.cli("swap", *options)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.needs("contrib.exec")
def test_swap_replaces_the_imported_lines_in_one_write_and_restore_puts_them_back(cron_host: Host) -> None:
    old = "MAILTO=ops@example.com\n# at night\n15 2 * * *\tbackup\n@reboot\tup\n@hourly tidy\n"
    imported(cron_host, old)
    dry = swapped(cron_host, "--dry-run")
    assert cron_host.crontab == old
    result = swapped(cron_host)
    begin = f"# cronjobs swapped {cron_host.config}: "
    lines = f"MAILTO=ops@example.com\n# at night\n{begin}15 2 * * *\tbackup\n@reboot\tup\n{begin}@hourly tidy\n"
    assert cron_host.crontab == lines + cron_host.block
    assert f"+{begin}@hourly tidy" in dry.stdout.splitlines()
    way_back = f"cronjobs crontab restore --config {cron_host.config}"
    assert f"cronjobs now runs 2 of the crontab's lines; to go back: {way_back}" in result.stdout
    why = "only the cron daemon notices that the machine starts (@reboot)"
    assert f"line 4 stays with cron ({why}): @reboot up\n" in result.stderr
    assert [file.read_text() for file in (cron_host.state / "cronjobs").iterdir()] == [old]
    cron_host.has((cron_host.crontab or "") + "7 7 * * * since\n")
    cron_host.config.unlink()
    restored = cron_host.cli("restore", "--yes")
    assert restored.exit_code == 0
    assert f"cron starts no ticks for {cron_host.config} any more" in restored.stderr
    assert f"cronjobs ack --config {cron_host.config} no_tick" in restored.stderr
    assert cron_host.crontab == old + "7 7 * * * since\n"
    assert "nothing to restore" in cron_host.cli("restore").stdout


def test_install_refuses_while_cron_runs_what_a_schedule_runs(cron_host: Host) -> None:
    old = "SHELL=/bin/bash\n15 2 * * *\tbackup\n@reboot up\n@hourly tidy\n5 5 * * * joe%hello\n"
    imported(cron_host, old)
    twice = "cron itself runs line 2 (backup), line 4 (tidy) and line 5 (joe) of your crontab"
    assert twice in cron_host.cli("show").stderr
    result = cron_host.cli("install")
    assert isinstance(result.exception, block.CrontabError)
    assert f"{twice}, and ticks would run the same commands again" in str(result.exception)
    assert cron_host.crontab == old
    others = old.replace("/bin/bash", "/bin/dash").replace("@hourly", "# @hourly").replace("hello", "good day")
    cron_host.has(others)
    said = str(cron_host.cli("install").exception)
    assert "cron runs line 2 (backup) and line 5 (joe), and schedules with those names have another command" in said
    assert "take the lines out of the crontab, or make the schedules run the lines' commands again" in said
    assert cron_host.crontab == others
    cron_host.has(others.replace("backup", "tar").replace("joe", "ann"))
    assert cron_host.cli("install").exit_code == 0  # cron runs other commands now
    cron_host.has(old + cron_host.block)
    again = cron_host.cli("install")
    assert again.exit_code == 0
    assert twice in again.stderr
    cron_host.has(old)
    assert cron_host.cli("install", "--force").exit_code == 0
    assert cron_host.crontab == old + cron_host.block


@pytest.mark.parametrize("wrapped", [False, pytest.param(True, marks=pytest.mark.needs("contrib.exec"))])
def test_a_line_is_recognised_in_a_command_that_is_a_list(cron_host: Host, wrapped: bool) -> None:
    cron_host.has("15 2 * * * pg_dump -f '/b/my app' app\n@hourly tidy | log\n")
    cron_host.config.write_text("database: sqlite:///x.db\n")
    assert not wrapped or cron_host.cli("wrap").exit_code == 0
    cron_host.config.write_text(
        "database: sqlite:///x.db\n"
        "schedules:\n"
        '  dump: {cron: "15 2 * * *", command: [pg_dump, -f, /b/my app, app]}\n'
        '  other: {cron: "15 2 * * *", command: [pg_dump, -f, /b/my, app, app]}\n'
        '  input: {cron: "15 2 * * *", command: [pg_dump, -f, /b/my app, app], stdin: y}\n'
        '  told: {cron: "15 2 * * *", command: [pg_dump, -f, /b/my app, app], payload: {a: 1}}\n'
        '  piped: {cron: "@hourly", command: [tidy, "|", log]}\n'
    )
    said = str(cron_host.cli("install").exception)
    assert "cron itself runs line 1 (dump) of your crontab" in said


@pytest.mark.needs("contrib.exec")
def test_a_wrapped_line_that_a_schedule_also_runs_is_named_and_unwrapped_first(cron_host: Host) -> None:
    old = "15 2 * * * backup 'a b'\n@hourly tidy\n5 5 * * * joe%hello\n"
    imported(cron_host, old)
    assert cron_host.cli("wrap").exit_code == 0
    text = cron_host.crontab
    twice = "cron itself runs line 1 (backup), line 2 (tidy) and line 3 (joe) of your crontab"
    way = 'run "cronjobs crontab unwrap", then "cronjobs crontab swap"'
    for result in (cron_host.cli("show"), cron_host.cli("install"), cron_host.cli("install", "--force")):
        said = f"{result.output}{result.exception or ''}"
        assert twice in said
        assert way in said
    cron_host.has(text or "")
    swap = cron_host.cli("swap")
    assert isinstance(swap.exception, block.CrontabError)
    assert 'through "cronjobs exec": run "cronjobs crontab unwrap" first' in str(swap.exception)
    assert cron_host.crontab == text
    assert cron_host.cli("unwrap").exit_code == 0
    swapped(cron_host)


def test_remove_says_that_lines_which_swap_took_are_run_by_nobody_now(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    swapped(cron_host)
    result = cron_host.cli("remove")
    assert result.exit_code == 0
    way_back = f"cronjobs crontab restore --config {cron_host.config}"
    assert f"nothing runs them now. To let cron run them again: {way_back}" in result.stderr
    elsewhere = cron_host.cli("restore", "--config", "other.yaml")
    assert elsewhere.exit_code == 1
    assert "nothing to restore" in elsewhere.stdout
    assert f"To restore them: cronjobs crontab restore --config {cron_host.config}\n" in elsewhere.stderr
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.crontab == "@daily a\n"


def moved(cron_host: Host, old: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Swap *old*, then move the project's file to another folder. Return its new path."""
    imported(cron_host, old)
    swapped(cron_host)
    file = cron_host.folder / "app" / "cronjobs.yaml"
    file.parent.mkdir()
    cron_host.config.rename(file)
    monkeypatch.setenv("CRONJOBS_CONFIG", str(file))
    return file


def test_install_in_a_moved_folder_takes_over_the_swapped_lines(
    cron_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "@daily a\n@hourly b\n# cronjobs swapped /srv/gone/cronjobs.yaml: @daily c\n"
    file = moved(cron_host, old, monkeypatch)
    elsewhere = f"already handed over to {cron_host.config}. If the project has moved from there, run cronjobs"
    assert elsewhere in str(cron_host.cli("swap").exception)
    dry = cron_host.cli("restore", "--dry-run")
    assert (dry.exit_code, "nothing to restore" in dry.stdout) == (1, True)
    assert f"cronjobs crontab restore --config {cron_host.config}" in dry.stderr
    assert f"+# cronjobs swapped {file}: @daily a" in cron_host.cli("install", "--dry-run").stdout
    result = cron_host.cli("install")
    assert f"2 lines that swap had handed over to {cron_host.config} now belong" in result.stdout
    assert f"cronjobs crontab remove --config {cron_host.config}" in result.stderr
    removed = cron_host.cli("remove", "--config", str(cron_host.config))
    assert (removed.exit_code, "comments" in removed.output) == (0, False)
    assert (cron_host.crontab or "").startswith(f"# cronjobs swapped {file}: @daily a\n")
    assert "belong to this block" not in cron_host.cli("install").output
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.crontab == old


def test_lines_that_another_block_of_the_crontab_runs_are_not_restored_beside_it(
    cron_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = moved(cron_host, "@daily a\n", monkeypatch)
    text = (cron_host.crontab or "") + block.block(file, cron_host.python)
    cron_host.has(text)
    whole = f"this crontab's block for {file} run these lines, so restore would make cron run them, too. To hand"
    refused = cron_host.cli("restore", "--config", str(cron_host.config)).exception
    assert isinstance(refused, block.CrontabError)
    assert whole in str(refused)
    assert f"cronjobs crontab install --config {file}. Nothing was changed" in str(refused)
    assert cron_host.crontab == text
    said = cron_host.cli("remove", "--config", str(cron_host.config)).stderr
    assert whole in said
    assert "nothing runs them" not in said
    cron_host.has(text)
    assert cron_host.cli("restore", "--config", str(cron_host.config), "--yes").exit_code == 0
    assert (cron_host.crontab or "").startswith("@daily a\n")


def test_lines_of_an_old_release_are_handed_over_after_its_block_is_removed(
    cron_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file is still there, so its ticks run the lines until its block is gone."""
    file = moved(cron_host, "@daily a\n", monkeypatch)
    cron_host.config.write_text(file.read_text())
    assert "now belong" not in cron_host.cli("install").stdout
    refused = str(cron_host.cli("restore", "--config", str(cron_host.config)).exception)
    ways = f"remove --config {cron_host.config}, then cronjobs crontab install --config {file}"
    assert ways in refused
    assert cron_host.cli("remove", "--config", str(cron_host.config)).exit_code == 0
    assert f"1 line that swap had handed over to {cron_host.config} now belongs" in cron_host.cli("install").stdout
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.crontab == "@daily a\n"


def ticked(cron_host: Host, name: str) -> None:
    """A host of this *name* has just ticked for the project."""
    with closing(ready_database(load(cron_host.config, environ={}))) as database, database.write() as connection:
        tick = f"INSERT INTO cronjobs_ticks (tick, host, pid, version, started_at) VALUES (:host, :host, 1, '0', {NOW})"
        run(connection, tick, host=name)


def test_restore_removes_a_block_that_was_installed_before_the_swap(cron_host: Host) -> None:
    """Otherwise the block's ticks and cron would both run the restored lines."""
    old = "@daily a\n@hourly b\n"
    cron_host.has(old)
    cron_host.config.write_text("database: sqlite:///cronjobs.db\n")
    assert cron_host.cli("install").exit_code == 0
    assert cron_host.cli("import", "--out", "all.yaml").exit_code == 0
    (cron_host.folder / "all.yaml").rename(cron_host.config)
    swapped(cron_host)
    restored = cron_host.cli("restore")
    assert restored.exit_code == 0, restored.output
    assert cron_host.crontab == old
    assert f"cron starts no ticks for {cron_host.config} any more" in restored.stderr


def test_install_tries_no_tick_whose_file_would_retire_every_schedule(cron_host: Host) -> None:
    """Such a tick goes on with the schedules in the database, and so makes jobs that nobody expects here."""
    imported(cron_host, "@daily a\n@hourly b\n")
    settings = load(cron_host.config, environ={})
    with closing(ready_database(settings)) as database:
        sync(database, settings, lambda _: None, host="web1", actor="tick")
    cron_host.config.write_text("database: sqlite:///cronjobs.db\n")
    cron_host.ticks(f"touch {cron_host.folder}/ticked; {REPORTS}")
    refused = str(cron_host.cli("install").exception)
    assert "would go on with the schedules that are in the database: the file would retire 2 of 2 schedules" in refused
    assert 'run "cronjobs sync --allow-removals". No tick was tried, and nothing was changed' in refused
    assert not (cron_host.folder / "ticked").exists()
    cron_host.ticks(REPORTS)
    assert cron_host.cli("install", "--force").exit_code == 0


def test_status_names_lines_that_cron_and_ticks_both_run(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    settings = load(cron_host.config, environ={})
    assert runs_twice(settings) is None  # there are no ticks
    assert cron_host.cli("install", "--force").exit_code == 0
    assert str(runs_twice(settings)).startswith("cron itself runs line 1 (a) of your crontab, and ticks run the same")
    twice = str(runs_twice(settings))

    def said(*command: str) -> str:
        argv = [sys.executable, "-m", "cronjobs", *command]
        return " ".join(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split())

    with closing(ready_database(settings)):
        assert f"crontab {twice}" in said("status")  # no tick has come yet, which is a finding
    said("run-due")
    assert f"so far no finding, but {twice}" in said("status")
    assert said("check", "--live") == twice
    swapped(cron_host)
    assert runs_twice(settings) is None


def test_restore_asks_before_it_stops_the_ticks_other_work(cron_host: Host) -> None:
    old = "@daily a\n"
    imported(cron_host, old)
    lines = cron_host.config.read_text()
    cron_host.config.write_text(f'{lines}  report: {{cron: "0 6 * * 1", command: [report]}}\nimports: [math]\n')
    swapped(cron_host)
    text = cron_host.crontab
    refused = str(cron_host.cli("restore").exception)
    assert f"restore also stops the ticks for {cron_host.config}" in refused
    assert "its other schedules (report), and jobs that your code enqueues would wait" in refused
    assert f"and run cronjobs crontab install --config {cron_host.config}" in refused
    assert cron_host.crontab == text
    assert cron_host.cli("restore", "--yes").exit_code == 0
    assert cron_host.crontab == old
    cron_host.config.write_text(lines.partition("\nschedules:")[0] + "\nimports: [math]\n")
    assert cron_host.cli("install").exit_code == 0  # ticks go on, without the schedules of the lines


def test_lines_that_stay_with_cron_are_no_other_work_of_the_ticks(cron_host: Host) -> None:
    """``import`` writes a job type for such a line, and the type may stay in the file without its schedule."""
    old = "@daily a\n@hourly b%to b\n@hourly c\n"
    imported(cron_host, old)
    begin, _, schedules = cron_host.config.read_text().partition("\nschedules:\n")
    text = f"{begin}\nschedules:\n{re.sub(r'(?ms)^  b:.*(?=^  c:)', '', schedules)}"
    cron_host.config.write_text(text)
    settings = load(cron_host.config, environ={})
    assert ({*settings.schedules}, {*settings.job_types}) == ({"a", "c"}, {"a", "b", "c"})
    swapped(cron_host)
    swapped_crontab = cron_host.crontab
    cron_host.config.write_text(text.replace("\njob_types:", "\njob_types:\n  mail.send: {command: [send-mail]}"))
    for option in ((), ("--dry-run",)):
        refused = cron_host.cli("restore", *option)
        assert "so jobs of types that have no schedule would wait (mail.send). Nothing" in str(refused.exception)
        assert ("+@hourly c" in refused.stdout) is bool(option)
        assert cron_host.crontab == swapped_crontab
    cron_host.config.write_text(text)
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.crontab == old


def test_restore_names_the_lines_whose_schedule_has_changed_since_the_swap(cron_host: Host) -> None:
    imported(cron_host, "0 3 * * * a\n@daily b\n@hourly c\n0 6 * * * d\n")
    swapped(cron_host)
    text = cron_host.config.read_text()
    for old, new in (
        ('cron: "0 3 * * *"', 'cron: "0 4 * * *"'),
        ('"-c", c]', '"-c", c --all]'),
        ('cron: "0 6 * * *"', 'cron: "0 6 * * *"\n    spread: 1h'),
    ):
        assert old in text
        text = text.replace(old, new)
    cron_host.config.write_text(text)
    said = cron_host.cli("restore").stderr.splitlines()
    assert [line for line in said if line.startswith("line ")] == [
        "line 1 (a): the schedule ran at 0 4 * * *, but cron runs the line at 0 3 * * * again",
        "line 3 (c): the schedule runs something else; cron follows the crontab again",
        "line 4 (d): the schedule ran at 0 6 * * *, spread over 1h, but cron runs the line at 0 6 * * * again",
    ]


def test_lines_that_another_host_runs_are_not_restored_beside_it(cron_host: Host) -> None:
    old = "CRONJOBS_HOST=web1\n@daily a\n"
    imported(cron_host, old)
    swapped(cron_host)
    ticked(cron_host, "web1")  # this host's own ticks, by the name that cron gives it
    text = cron_host.crontab
    ticked(cron_host, "web2")
    refused = cron_host.cli("restore")
    assert isinstance(refused.exception, block.CrontabError)
    assert "also ticks for this project and runs the schedules of these lines" in str(refused.exception)
    assert "web2 (" in str(refused.exception)
    assert "web1" not in str(refused.exception)
    assert cron_host.crontab == text
    removed = cron_host.cli("remove")
    assert "still runs these lines. If this host is to stay out of service, keep these" in removed.stderr
    assert "nothing runs them" not in removed.stderr
    assert cron_host.cli("restore", "--yes").exit_code == 0
    assert cron_host.crontab == old


def test_restore_is_not_refused_because_of_a_host_that_ticks_no_more(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    swapped(cron_host)
    ticked(cron_host, "web2")
    with closing(ready_database(load(cron_host.config, environ={}))) as database, database.write() as connection:
        run(connection, "UPDATE cronjobs_ticks SET started_at = started_at - 181000000")
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.crontab == "@daily a\n"


@pytest.mark.needs("contrib.exec")
def test_wrap_refuses_a_project_whose_file_is_not_there(cron_host: Host) -> None:
    """Its runs would wait in the spool for a database that nobody can name."""
    cron_host.has("@daily a\n")
    result = cron_host.cli("wrap", "--config", "nosuch.yaml")
    assert isinstance(result.exception, ConfigError)
    assert cron_host.crontab == "@daily a\n"


@pytest.mark.needs("contrib.exec")
def test_a_terminal_that_has_no_euro_sign_does_not_keep_lines_from_being_wrapped(
    cron_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    cron_host.has('@daily echo "müll €"\n')
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CRONJOBS_CONFIG")
    command = [sys.executable, "-m", "cronjobs", "crontab", "wrap"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, b"wrapped 1 line" in done.stdout) == (0, True), done.stderr
    assert "echo -c 'echo \"müll €\"'\n" in (cron_host.crontab or "")


@pytest.mark.needs("contrib.exec")
def test_wrap_names_the_lines_that_record_for_another_project(cron_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    cron_host.has("@daily a\n@hourly b\n@reboot c\n")
    monkeypatch.delenv("CRONJOBS_CONFIG")
    assert cron_host.cli("wrap").exit_code == 0
    assert "already wrapped" not in cron_host.cli("wrap").stderr
    ops = cron_host.folder / "my ops%" / "cronjobs.yaml"
    ops.parent.mkdir()
    ops.write_text("database: sqlite:///cronjobs.db\n")
    for options in (["--dry-run"], []):
        assert (
            f"lines 1, 2 are already wrapped; runs are recorded in your state folder. To record them for {ops} "
            'instead, run "cronjobs crontab unwrap" and then the same wrap command again'
        ) in cron_host.cli("wrap", "--config", str(ops), *options).stderr
    assert cron_host.cli("unwrap").exit_code == 0
    assert "already" not in cron_host.cli("wrap", "--config", str(ops)).stderr
    assert "already" not in cron_host.cli("wrap", "--config", str(ops)).stderr
    assert f"recorded for {ops}. To record them in your state folder" in cron_host.cli("wrap").stderr


def test_swap_refuses_while_cron_runs_a_line_whose_schedule_has_another_command(cron_host: Host) -> None:
    """The entry may do the same in another way: then the line would run twice."""
    old = "* * * * * heartbeat\n@hourly b\n"
    imported(cron_host, old)
    text = cron_host.config.read_text()
    cron_host.config.write_text(text.replace('[/bin/sh, "-c", heartbeat]', "[/bin/heartbeat]"))
    assert cron_host.config.read_text() != text
    said = str(cron_host.cli("swap").exception)
    assert (
        "cron runs line 1 (heartbeat), and a schedule with that name has another command: both commands would" in said
    )
    assert "take the line out of the crontab, or make the schedule run the line's command again" in said
    assert "if both commands should run, add --yes" in said
    assert cron_host.crontab == old
    assert "line 1 (heartbeat)" in str(cron_host.cli("swap", "--dry-run").exception)
    assert "stays with cron" in swapped(cron_host, "--yes").stderr
    cron_host.has(f"{cron_host.crontab}@daily heartbeat --all\n")
    assert "line 1 (heartbeat)" in cron_host.cli("install").stderr


def test_a_line_that_stays_is_not_taken_for_the_swapped_line_of_the_same_program(cron_host: Host) -> None:
    imported(cron_host, "@daily a x\n@hourly a y\n@weekly a z\n")
    whole = cron_host.config.read_text()
    cron_host.config.write_text(whole.replace("  a-2:", "  kept:\n    environments: [staging]"))
    assert "a-3:" in whole
    swapped(cron_host)
    assert "cron runs line" not in cron_host.cli("install").output


def test_swap_leaves_a_line_that_no_schedule_runs_any_more(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n@hourly b\n")
    cron_host.has("@daily a --changed\n@hourly b\n")
    assert isinstance(cron_host.cli("swap").exception, block.CrontabError)
    result = swapped(cron_host, "--yes")
    assert (cron_host.crontab or "").startswith("@daily a --changed\n# cronjobs swapped ")
    assert "line 1 stays with cron (no schedule runs it): @daily a --changed" in result.stderr


def test_a_second_swap_says_that_the_lines_are_swapped_already(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    swapped(cron_host)
    again = str(cron_host.cli("swap").exception)
    assert "cronjobs already runs the lines of the crontab of" in again
    assert f"swap has handed them over to {cron_host.config}" in again


def test_swap_changes_nothing_if_no_line_fits_or_the_tick_fails(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    cron_host.ticks("echo 'disk full' >&2; exit 4")
    failed = cron_host.cli("swap")
    assert isinstance(failed.exception, host.TrialTickFailed)
    assert cron_host.crontab == "@daily a\n"
    cron_host.has("@daily other\n")
    nothing = cron_host.cli("swap").exception
    assert isinstance(nothing, block.CrontabError)
    assert "If cron runs the lines from another file, move them from there to this crontab first" in str(nothing)
    assert cron_host.crontab == "@daily other\n"


def test_restore_names_the_runs_that_wait_and_swap_refuses_until_they_are_cancelled(cron_host: Host) -> None:
    old = "@daily a\n@hourly b\n"
    imported(cron_host, old)
    swapped(cron_host)

    with closing(ready_database(load(cron_host.config, environ={}))) as database, database.write() as connection:
        run(connection, "INSERT INTO {jobs} (job_type, schedule) VALUES ('a', 'a'), ('a', 'a')")
    restored = cron_host.cli("restore")
    cancel = f"cronjobs jobs cancel --config {cron_host.config} --schedule a"
    assert (
        "2 runs wait (a), and cron does not run them. Ticks would run them after the next swap. "
        f"To cancel them: {cancel}" in restored.stderr
    )
    assert cron_host.crontab == old
    refused = str(cron_host.cli("swap").exception)
    assert "2 runs wait (a). Ticks would run these old runs late, in addition to new runs" in refused
    assert f"cancel them ({cancel}), or add --yes to let them run" in refused
    assert cron_host.crontab == old
    swapped(cron_host, "--yes")
    assert cron_host.cli("restore").exit_code == 0
    done = subprocess.run([sys.executable, "-m", *cancel.split(), "--yes"], check=True, capture_output=True, text=True)
    assert done.stdout == "cancelled 2 jobs\n"
    swapped(cron_host)
    assert "wait" not in cron_host.cli("restore").output


@pytest.mark.parametrize("lost", ["cronjobs.yaml", "cronjobs.db"])
def test_restore_asks_if_nobody_knows_whether_another_host_runs_the_lines(cron_host: Host, lost: str) -> None:
    imported(cron_host, "@daily a\n")
    swapped(cron_host)
    text = cron_host.crontab
    (cron_host.folder / lost).write_text("[" * 5000)  # neither YAML nor a database
    refused = cron_host.cli("restore").exception
    assert isinstance(refused, block.CrontabError)
    assert "cannot find out whether another host ticks for this project: " in str(refused)
    assert "if no other host ticks, add --yes to give cron its lines back" in str(refused)
    assert cron_host.crontab == text
    restored = cron_host.cli("restore", "--yes")
    assert restored.exit_code == 0
    assert cron_host.crontab == "@daily a\n"
    assert (
        "runs of these lines may still wait in the jobs database, and other hosts may still run the lines"
        in restored.stderr
    )


def test_restore_reads_the_database_that_only_the_crontab_names(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    swapped(cron_host)
    ticked(cron_host, "web2")
    text = cron_host.crontab or ""
    written = yaml.safe_load(cron_host.config.read_text())["database"]
    cron_host.config.write_text(cron_host.config.read_text().replace(written, "${JOBS_URL}"))
    refused = cron_host.cli("restore").exception
    assert isinstance(refused, block.CrontabError)
    assert "cronjobs cannot find out whether another host ticks for this project: " in str(refused)
    cron_host.has(f"JOBS_URL={written}\n{text}")
    refused = cron_host.cli("restore").exception
    assert isinstance(refused, block.CrontabError)
    assert str(refused).startswith("web2 ")
    assert "also ticks for this project" in str(refused)
    assert cron_host.crontab == f"JOBS_URL={written}\n{text}"
    settings = load(cron_host.config, environ={"JOBS_URL": written})
    with closing(ready_database(settings)) as database, database.write() as connection:
        run(connection, "INSERT INTO {jobs} (job_type, schedule) VALUES ('a', 'a')")
    assert "1 run waits (a), and cron does not run" in cron_host.cli("restore", "--yes").stderr


def test_the_trial_tick_of_a_swap_takes_over_the_schedules_of_the_lines_that_cron_ran(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n@hourly b\n")
    cron_host.ticks(f"""echo "$CRONJOBS_RUN_BY_CRON" on "$CRONJOBS_HOST" >{cron_host.folder}/taken; {REPORTS}""")
    cron_host.has("@daily a\nCRONJOBS_HOST=web1\n")
    swapped(cron_host)
    assert (cron_host.folder / "taken").read_text() == "a on web1\n"
    cron_host.cli("install")
    assert (cron_host.folder / "taken").read_text() == " on web1\n"


def test_a_trial_tick_does_not_run_again_what_cron_ran_of_lines_that_have_lost_their_schedules(
    cron_host: Host,
) -> None:
    imported(cron_host, "@daily a\n")
    cron_host.ticks(f"""echo $CRONJOBS_RUN_BY_CRON >{cron_host.folder}/ran; {REPORTS}""")
    cron_host.has("@daily a\n@hourly b\n@weekly c\n")
    for command, ran in (("install --force", "b c\n"), ("swap", "a b c\n")):
        assert cron_host.cli(*command.split()).exit_code == 0
        assert (cron_host.folder / "ran").read_text() == ran


def test_a_forced_swap_without_a_tick_says_what_may_run_twice(cron_host: Host) -> None:
    imported(cron_host, "@daily a\n")
    cron_host.ticks("echo 'disk full' >&2; exit 4")
    assert "may repeat commands that cron ran in the last few minutes" in swapped(cron_host, "--force").stderr


def test_swap_begins_early_in_a_minute_and_says_when_another_one_has_begun(
    cron_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that begins at 08:59:59 and a crontab written at 09:00:01 would both run what is due at 09:00."""
    clock = FakeClock(EARLY - timedelta(seconds=11))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(timedelta(seconds=1))

    monkeypatch.setattr(swap_cli, "SYSTEM", clock)
    monkeypatch.setattr(swap_cli, "sleep", sleep)
    imported(cron_host, "@daily a\n")
    assert "waiting for the next minute" in swapped(cron_host).stderr
    assert (len(waits), clock.now()) == (3, EARLY - timedelta(seconds=8))
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.cli("install", "--force").exit_code == 0
    clock.advance(timedelta(seconds=50))
    assert "waiting" not in swapped(cron_host).stderr  # ticks run the lines, too, so every further run is doubled
    assert cron_host.cli("restore").exit_code == 0
    clock.advance(timedelta(seconds=20))
    monkeypatch.setattr(swap_cli, "write", lambda *_: clock.advance(timedelta(minutes=1)))
    assert "lines due in that minute may run twice" in swapped(cron_host).stderr


def test_a_trial_tick_that_lasts_into_the_next_minute_is_followed_by_another(
    cron_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran a long job, and cron started the next minute's lines meanwhile. So these lines are skipped, too."""
    clock, trials = FakeClock(EARLY), []
    monkeypatch.setattr(swap_cli, "SYSTEM", clock)
    real = crontab_cli.trial

    def trial(*given: Any) -> Any:
        trials.append(clock.now())
        clock.advance(timedelta(seconds=59 if len(trials) == 1 else 3))
        return real(*given)

    monkeypatch.setattr(swap_cli, "trial", trial)
    imported(cron_host, "@daily a\n")
    assert "twice" not in swapped(cron_host).stderr
    assert trials == [EARLY, EARLY + timedelta(seconds=59)]


# --- ten crontabs -----------------------------------------------------------------------------------------------------


@pytest.mark.needs("contrib.exec")
@pytest.mark.parametrize("name", CRONTABS)
def test_a_realistic_crontab_is_wrapped_imported_compared_swapped_and_restored(
    cron_host: Host, tmp_path: Path, name: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    old = furnish(home, name)
    lines = [line for line in old.splitlines() if line and not line.startswith("#")]
    found = imported(cron_host, old)
    assert cron_host.cli("wrap").exit_code == 0
    wrapped = [line for line in (cron_host.crontab or "").splitlines() if " exec " in line and line not in lines]
    assert len(wrapped) == len(found.schedules)
    assert cron_host.cli("unwrap").exit_code == 0
    assert cron_host.crontab == old
    result = cron_host.cli("compare", "--from", "2027-03-01T00:00", "--days", "35")
    assert result.exit_code == 0, result.output
    swapped(cron_host)
    left = [line for line in (cron_host.crontab or "").splitlines() if line and not line.startswith("#")]
    set_there = len([line for line in lines if "=" in line.split()[0] or " = " in f"{line} "[:14]])
    reboots = sum(line.startswith("@reboot") for line in lines)
    assert len(lines) - len(left) == len(found.schedules) - 1  # the block has a line of its own
    assert len(left) == set_there + reboots + 1
    assert cron_host.cli("restore").exit_code == 0
    assert cron_host.crontab == old
