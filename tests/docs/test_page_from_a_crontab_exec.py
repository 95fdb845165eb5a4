"""docs/tutorials/from-a-crontab.md, about exec: the crontab becomes what the page shows, and all names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cronhost import Host
from support.pages import Page
from typer.testing import CliRunner

from cronjobs.contrib.exec import spool, start, target
from cronjobs.contrib.exec import wrap_cli as crontab_wrap
from cronjobs.contrib.exec.arguments import read_arguments
from cronjobs.contrib.exec.copying import KEPT
from cronjobs.desk.cli import crontab as commands
from cronjobs.desk.crontab import lines, program
from cronjobs.desk.rules.finding_kinds import FINDING_KINDS
from cronjobs.engine.config.load import load

PAGE = Page("docs/tutorials/from-a-crontab.md")


def test_wrap_writes_what_the_page_shows_and_unwrap_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (block.text for block in PAGE.blocks("crontab")[1:])
    stored = {"text": before}
    monkeypatch.setattr(program, "read", lambda: stored["text"])
    monkeypatch.setattr(program, "replace", lambda old, new: stored.update(text=new))
    monkeypatch.setattr(program, "keep_copy", lambda text: Path("/home/ada/.local/state/cronjobs/crontab-4f1d0c6a52be"))
    monkeypatch.setattr(crontab_wrap, "own_program", lambda: ["/srv/app/.venv/bin/cronjobs"])
    monkeypatch.chdir(tmp_path)
    for name in ("CRONJOBS_CONFIG", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    dry = CliRunner().invoke(commands.app, ["wrap", "--dry-run"])
    assert (dry.exit_code, stored["text"]) == (0, before)
    assert f"+{after.splitlines()[-1]}" in dry.output
    done = CliRunner().invoke(commands.app, ["wrap"])
    assert stored["text"] == after
    _, shown = PAGE.block("console", "the previous crontab").split("\n", 1)
    assert done.output == shown
    assert CliRunner().invoke(commands.app, ["unwrap"]).exit_code == 0
    assert stored["text"] == before


def test_the_project_that_notifies_can_be_set_up_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    host.config.write_text(PAGE.block("yaml", "ops:"))
    before = PAGE.blocks("crontab")[1].text
    host.has(before)
    *lines, test = PAGE.block("console", "crontab install").splitlines()
    for line in lines:
        done = host.cli(*line.removeprefix("$ cronjobs crontab ").split())
        assert done.exit_code == 0, line
        if line.endswith(" wrap"):
            assert f'recorded for {host.config}. "cronjobs status" shows a line once it has run' in done.stdout
    assert (host.crontab or "").count(" exec ") == (host.crontab or "").count(f"--config {host.config} -c ") == 2
    assert (host.crontab or "").endswith(host.block)
    alerts = load(host.config, environ={}).alerts
    assert alerts is not None
    assert [*alerts.channels] == ["ops"]
    assert test == "$ cronjobs alerts test"


def test_the_lines_of_the_crontab_are_what_exec_reads() -> None:
    after = PAGE.block("crontab", "cronjobs exec")
    names = [lines.exec_name(line) for line in lines.job_lines(after)]
    assert names == ["pg_dump-app", "fetch"]
    for form in ("cronjobs exec NAME -c 'LINE'", "cronjobs exec NAME -- PROGRAM ARGUMENT…"):
        assert f"`{form}`" in PAGE.text
        assert read_arguments(form.replace("'", "").split()[1:]).name == "NAME"


def test_its_numbers_and_names_are_those_of_the_code() -> None:
    text = " ".join(PAGE.text.split())
    assert f"`~/.local/state/cronjobs/{spool.FOLDER}`. The spool keeps at most {spool.MOST_FILES:,} runs" in text
    assert f"larger than {spool.MOST_BYTES >> 20} MiB" in text
    assert f"`~/.local/state/cronjobs/{target.FILE}`" in text
    assert f"The last {KEPT >> 10} KiB are recorded" in text
    [forwarded] = re.findall(r"- (SIG.*) are forwarded", text)
    assert len(re.findall(r"SIG[A-Z0-9]+", forwarded)) == len(start.FORWARDED)
    for kind in ("absent", "overlapped"):
        assert f"`{kind}`" in text
        assert kind in FINDING_KINDS
