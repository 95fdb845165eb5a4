"""docs/reference matches the code and is complete."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from support.pages import ROOT
from typer.main import get_command

from cronjobs import events
from cronjobs.desk.cli.main import app
from cronjobs.engine.rules.ending import decide
from cronjobs.events import Event
from cronjobs.model import Failed, Finished, Job, Lost, Outcome, RetryPolicy

sys.path.insert(0, str(ROOT / "docs"))

import generate

pytestmark = pytest.mark.either


@pytest.mark.parametrize("page", generate.PAGES)
def test_the_page_is_what_the_code_says(page: str) -> None:
    written = (generate.REFERENCE / page).read_text(encoding="utf-8")
    assert written == generate.text_of(page), "run: python docs/generate.py"


def test_the_generator_names_a_page_that_differs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {"events.md": generate.events})
    assert generate.main(["--check"]) == 1
    assert "docs/reference/events.md is not what the code says: run python docs/generate.py" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert generate.main(["--chekc"]) == 2


def loaded(path: str) -> Any:
    """The command as typer has it."""
    found: Any = get_command(app)
    for word in path.split():
        found = found.commands[word]
        found = found.load() if hasattr(found, "load") else found
    return found


def all_paths(group: Any, before: str = "") -> set[str]:
    found = set()
    for name, one in group.commands.items():
        one = one.load() if hasattr(one, "load") else one
        found |= {f"{before}{name}"} | (all_paths(one, f"{before}{name} ") if hasattr(one, "commands") else set())
    return found


def test_every_command_is_there_with_the_options_that_it_takes() -> None:
    documented = {command.path: command for command in generate.all_commands()}
    assert documented.keys() == all_paths(get_command(app))
    for path, command in documented.items():
        if command.function is None:
            continue
        taken = loaded(path)
        typers = {
            name for each in taken.get_params(typer.Context(taken)) for name in (*each.opts, *each.secondary_opts)
        }
        found = list(generate.parameters(command.function))
        ours = {name for each in found for name in each.names}
        assert ours == {name for name in typers if name.startswith("-")} - {"--help", "-h"}, path
        assert all(each.help for each in found), path
        assert command.help, path


def test_every_event_is_there() -> None:
    assert generate.events_in_code().keys() == generate.EVENTS.keys()
    assert all(facts.levels for facts in generate.events_in_code().values())


NOW = datetime(2026, 11, 20, 2, 15, tzinfo=UTC)
JOB = Job(id=17, job_type="billing.send_invoice", payload={}, attempt=2)


def ended(outcome: Outcome, tries: int) -> Event:
    policy = RetryPolicy(max_attempts=tries)
    return events.job_ended(Finished(JOB, outcome), decide(JOB, outcome, policy, NOW, 0), policy, Path("/srv/shop"))


def lost(losses: int) -> Event:
    job = JOB._replace(losses=losses)
    return events.job_lost(job, decide(job, Lost(), RetryPolicy(), NOW, 0), "its runner died")


def of_occurrence(outcome: str, reason: str | None) -> Event:
    return events.occurrence_recorded("nightly", outcome, 1, NOW, reason, 17)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("job.retried", [ended(Failed("503", "IOError"), 5)]),
        (
            "job.dead",
            [ended(Failed("503", "IOError"), 1), lost(9), events.job_died_unreported(1, "t", "ValueError", "no")],
        ),
        ("job.lost", [lost(0)]),
        ("schedule.enqueued", [of_occurrence("enqueued", None)]),
        ("schedule.skipped", [of_occurrence("skipped", "paused by ann"), of_occurrence("skipped", "overlap")]),
        ("schedule.missed", [of_occurrence("missed", "too late")]),
        ("schedule.coalesced", [of_occurrence("coalesced", "of 02:15")]),
        (
            "schedules.applied",
            [
                events.schedules_applied(
                    "1a2b", {name: ["x"] for name in ("add", "change", "remove", "rename", "queues")}
                )
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_has_the_levels_and_the_facts_of_an_event(name: str, made: list[Event]) -> None:
    documented = generate.events_in_code()[name]
    assert {event.name for event in made} == {name}
    assert set(documented.levels) == {event.level for event in made}
    assert set(documented.facts) == {fact for event in made for fact in event.facts}


@pytest.mark.parametrize("module", generate.MODULES)
def test_every_exported_name_has_a_docstring_that_is_there(module: str) -> None:
    found = import_module(module)
    page = (generate.REFERENCE / "python.md").read_text(encoding="utf-8")
    names = generate.exported(found)
    assert names
    assert [name for name in names if f"### {name}\n" not in page] == []
    silent = {name for name in names if callable(getattr(found, name)) and not generate.own_doc(getattr(found, name))}
    assert silent == set()


def test_a_narrow_screen_shows_beside_a_key_what_it_decides() -> None:
    lines = (ROOT / "docs/reference/configuration.md").read_text().splitlines()
    headers = [line for line in lines if line.startswith("| key |")]
    assert headers
    assert all(header.startswith("| key | what it decides |") for header in headers)
