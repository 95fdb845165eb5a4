"""docs/tutorials/from-a-crontab.md: its crontab becomes its YAML, its commands run, its table is complete."""

from __future__ import annotations

import pwd
import re
import typing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.configfile import read as read_config
from support.cronhost import Host
from support.pages import Page

from cronjobs.contrib.take_over import swap_cli
from cronjobs.contrib.take_over.as_yaml import as_yaml
from cronjobs.contrib.take_over.convert_lines import Importer
from cronjobs.engine.config.settings import Leftovers
from cronjobs.testing import FakeClock

PAGE = Page("docs/tutorials/from-a-crontab.md")
OWNER = pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/home/ada", "/bin/bash"))


def entries(text: str) -> Any:
    found = read_config(text)
    assert found.problems == ()
    return found.database, found.timezone, found.run, found.alerts, found.job_types, found.schedules


def test_the_crontab_becomes_the_file_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Importer(OWNER, "Europe/Berlin").convert(PAGE.block("crontab", "@reboot"))
    text = as_yaml(found, of="a page", timezone="Europe/Berlin", sender="ada@web1.example.com")
    assert entries(text) == entries(PAGE.block("yaml", "job_types"))
    assert yaml.safe_load(text) == {"log": "cronjobs.log"} | yaml.safe_load(PAGE.block("yaml", "job_types"))
    assert [left.text.split()[0] for left in found.left] == ["@reboot"]


def test_the_commands_can_be_typed_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch)
    host.config.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setattr(swap_cli, "SYSTEM", FakeClock(datetime(2027, 1, 15, 9, 0, 10, tzinfo=UTC)))
    old = PAGE.block("crontab", "@reboot")
    host.has(old)
    typed = [line.removeprefix("$ ") for one in PAGE.blocks("console")[:3] for line in one.text.splitlines()]
    assert [line for line in typed if line.startswith("cronjobs crontab ")] == typed[1:]
    assert typed[0] == "cd /srv/shop"
    before = old
    for line in typed[1:]:
        result = host.cli(*line.split()[2:])
        assert result.exit_code == 0, (line, result.output)
        if line.endswith("swap"):
            before = host.crontab or ""
    assert before.count("\n# cronjobs swapped ") == 2
    assert host.crontab == old


def test_more_lines_are_moved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch)
    host.config.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(swap_cli, "SYSTEM", FakeClock(datetime(2027, 1, 15, 9, 0, 10, tzinfo=UTC)))
    old = "@daily first\n@hourly later\n"
    host.has(old)
    assert host.cli("import").exit_code == 0
    whole = host.config.read_text()
    host.config.write_text(whole.partition("\n  later:")[0] + "\n")
    assert "line 2 stays with cron (no schedule runs it): @hourly later" in host.cli("swap").stderr
    assert (host.crontab or "").count("# cronjobs swapped ") == 1
    assert host.cli("restore").exit_code == 0
    assert host.crontab == old
    assert "  later:" in host.cli("import", "--out", "-").stdout
    host.config.write_text(whole)
    assert host.cli("swap").exit_code == 0
    assert (host.crontab or "").count("# cronjobs swapped ") == 2


@pytest.mark.needs("contrib.exec")
def test_recorded_lines_are_handed_over_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(swap_cli, "SYSTEM", FakeClock(datetime(2027, 1, 15, 9, 0, 10, tzinfo=UTC)))
    host.config.write_text(PAGE.block("yaml", "ops:"))
    old = PAGE.blocks("crontab")[1].text
    host.has(old)
    for command in ("wrap", "install"):
        assert host.cli(command).exit_code == 0
    ours = yaml.safe_load(host.config.read_text())
    for shown in ("--out all.yaml", "mv all.yaml"):
        for line in PAGE.block("console", shown).splitlines():
            if line == "$ mv all.yaml cronjobs.yaml":
                new = yaml.safe_load((tmp_path / "all.yaml").read_text())
                (tmp_path / "all.yaml").write_text(yaml.safe_dump(new | ours))
                (tmp_path / "all.yaml").rename(host.config)
                continue
            result = host.cli(*line.removeprefix("$ cronjobs crontab ").split())
            assert result.exit_code == 0, (line, result.output, result.exception)
    assert (host.crontab or "").count("# cronjobs swapped ") == 2
    assert (host.crontab or "").endswith(host.block)
    assert host.cli("restore").exit_code == 0
    assert host.crontab == old


def test_the_table_of_keys_is_whole_and_no_block_is_left_out() -> None:
    assert [row["key"] for row in PAGE.table("The keys of a command")] == ["`stdin`", "`folder`", "`leftovers`"]
    assert all(f"`{word}`" in PAGE.text for word in typing.get_args(Leftovers))
    assert PAGE.counts() == {"console": 7, "crontab": 3, "yaml": 2}  # exec: test_page_from_a_crontab_exec.py
    assert PAGE.dead_links() == []
    assert not re.search(r"`cronjobs crontab (?!install|remove|import|compare|swap|restore|wrap|unwrap)", PAGE.text)
