"""What ``cronjobs systemd`` prints starts the same command as the crontab's line, at the same instants."""

from __future__ import annotations

import configparser
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cronjobs.desk.cli import systemd as command
from cronjobs.desk.cli.main import app
from cronjobs.desk.crontab import block, program
from cronjobs.desk.crontab.systemd_units import Units, calendar, command_line, unit_name, units
from cronjobs.errors import UsageError

pytestmark = pytest.mark.either

MINUTE = timedelta(minutes=1)
CONFIG, PYTHON = Path("/srv/my 100% $HOME/it's.yaml"), Path("/srv/.venv/bin/python")


def made(config: Path = CONFIG, *, user: str | None = "app", grace: timedelta = timedelta(seconds=10)) -> Units:
    return units(config, PYTHON, name="cronjobs-shop", user=user, every=MINUTE, shutdown_grace=grace)


def read(text: str) -> configparser.RawConfigParser:
    """A unit file. Comments are lines of their own, and no key is there twice."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def as_systemd_reads(line: str) -> list[str]:
    """ExecStart= by the rules of systemd.service(5), "Command lines", written down apart from the code."""
    words, word, quote, rest = [], "", "", iter(line)
    for sign in rest:
        if sign == "\\":
            word += next(rest)
        elif quote or sign in "\"'":
            if not quote:
                assert not word or word == ":", "a quote begins a word"
                quote = sign
            elif sign == quote:
                quote = ""
            else:
                word += sign
        elif sign == " ":
            words.append(word)
            word = ""
        else:
            word += sign
    words.append(word)
    variables = not words[0].startswith(":")
    words[0] = words[0].removeprefix(":")
    assert not (variables and any("$" in word for word in words)), "systemd would look for a variable"
    singles = [word.replace("%%", "") for word in words]
    assert not any("%" in word for word in singles), "a specifier"
    return [word.replace("%%", "%") for word in words]


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1), min_size=1))
def test_each_word_arrives_as_it_is(words: list[str]) -> None:
    words = ["/usr/bin/python", *words]
    assert as_systemd_reads(command_line(words)) == words


def test_the_service_starts_what_the_crontab_starts() -> None:
    service = read(made().service)["Service"]
    assert as_systemd_reads(service["ExecStart"]) == block.tick_words(CONFIG, PYTHON)
    assert service["Type"] == "oneshot"
    assert service["User"] == "app"
    assert service["KillMode"] == "process"  # or each long job would end with its tick
    assert service["SuccessExitStatus"].split() == ["1", "143"]
    assert "TimeoutStopSec" not in service
    assert "User" not in read(made(user=None).service)["Service"]


def test_a_stop_leaves_the_jobs_their_grace() -> None:
    service = read(made(grace=timedelta(minutes=5)).service)["Service"]
    assert service["TimeoutStopSec"] == "305"


def test_a_description_has_no_specifier() -> None:
    for text in made().files().values():
        assert read(text)["Unit"]["Description"].endswith("/srv/my 100%% $HOME/it's.yaml")


@pytest.mark.parametrize("path", ["/srv/a\nExecStartPre=/bin/rm -rf", "/srv/\udcff", "/srv/a\tb"])
def test_a_path_that_would_be_another_line_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="unprintable character"):
        made(Path(path))


@pytest.mark.parametrize(
    ("every", "instants"),
    [("1m", "*-*-* *:*:00"), ("5m", "*-*-* *:0/5:00"), ("1h", "*-*-* *:0:00"), ("6h", "*-*-* 0/6:0:00")],
)
def test_the_timer_fires_when_the_crontab_would(every: str, instants: str) -> None:
    number, unit = int(every[:-1]), {"m": "minutes", "h": "hours"}[every[-1]]
    assert calendar(timedelta(**{unit: number})) == instants


def test_the_timer_is_not_late_and_makes_up_for_nothing() -> None:
    timer = read(made().timer)["Timer"]
    assert dict(timer) == {"OnCalendar": "*-*-* *:*:00", "AccuracySec": "1s"}  # catch_up: makes up for ticks


@pytest.mark.parametrize(
    ("project", "name"), [("shop", "cronjobs-shop"), ("", "cronjobs"), ("the shop/2", "cronjobs-the-shop-2")]
)
def test_units_are_named_after_the_project(project: str, name: str) -> None:
    assert unit_name(project) == name


def test_the_command_prints_both_or_writes_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRONJOBS_CONFIG", raising=False)
    monkeypatch.setenv("CRONJOBS_DATABASE_URL", "sqlite:///elsewhere.db")
    file = tmp_path / "cronjobs.yaml"
    file.write_text("project: shop\nrun: {every: 2m}\n")
    crontab = block.block(file, program.interpreter())
    monkeypatch.setattr(program, "read", lambda: crontab)
    words = ["systemd", "--config", str(file), "--user"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "# ~/.config/systemd/user/cronjobs-shop.service\n[Unit]\n" in shown.stdout
    assert "OnCalendar=*-*-* *:0/2:00\n" in shown.stdout
    assert "To stop cron from starting them: cronjobs crontab remove --config" in shown.stderr
    assert "CRONJOBS_DATABASE_URL is set here" in shown.stderr
    written = CliRunner().invoke(app, [*words, "--name", "mine", "--out", str(tmp_path / "units")])
    files = [tmp_path / "units" / f"mine.{kind}" for kind in ("service", "timer")]
    assert written.stdout.split() == [str(each) for each in files]
    assert "systemctl --user daemon-reload && systemctl --user enable --now mine.timer" in written.stderr
    assert files[0].read_text() in shown.stdout.replace("cronjobs-shop.", "mine.")
    refused = CliRunner().invoke(app, [*words, "--name", "../x"])
    assert isinstance(refused.exception, UsageError)


def test_the_help_says_that_it_replaces_the_crontab() -> None:
    assert command.systemd.__doc__ is not None
    assert "instead of the crontab" in command.systemd.__doc__
