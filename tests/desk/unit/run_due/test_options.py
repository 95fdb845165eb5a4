"""Cron's command line is parsed without typer, with the same meaning as with typer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command

from cronjobs.desk.cli import main, run_due
from cronjobs.engine.run_due.options import OPTIONS, TickOptions, tick_options
from cronjobs.engine.tick import deadline

VALUES = st.sampled_from(
    [
        "a",
        "run-due",
        "",
        "-",
        "--json",
        "0",
        "1",
        "64",
        "65",
        "007",
        "1_0",
        "٣",
        " 1",
        "1.5",
        "30s",
        "dead",
        "Any",
        "x y",
    ]
)
FLAGS = [word for option in OPTIONS.values() if option.read is None for word in option.words.split()]
VALUED = [option.words for option in OPTIONS.values() if option.read is not None]
WORDS = st.one_of(st.sampled_from([*FLAGS, *VALUED, "--help", "--budget=30s", "-vq", "--"]), st.just("run-due"), VALUES)
PAIRS = st.one_of(st.tuples(st.sampled_from(FLAGS)), st.tuples(st.sampled_from(VALUED), VALUES))
LINES = st.one_of(
    st.lists(WORDS, max_size=6),
    st.tuples(st.lists(PAIRS, max_size=2), st.lists(PAIRS, max_size=4)).map(
        lambda parts: [*(w for p in parts[0] for w in p), "run-due", *(w for p in parts[1] for w in p)]
    ),
)


class Reached(Exception):
    """Typer has read the line and calls the tick."""


def read_by_typer(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> TickOptions | None:
    """None: typer prints a help text or an error instead."""
    found: list[TickOptions] = []

    def note(given: TickOptions) -> None:
        found.append(given)
        raise Reached

    monkeypatch.setattr(run_due, "run_tick", note)
    monkeypatch.setattr(deadline, "arm", lambda: None)
    try:
        get_command(main.app).main(args=arguments, prog_name="cronjobs", standalone_mode=False)
    except Reached:
        return found[0]
    except Exception:
        return None
    return None


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=LINES)
def test_a_line_that_is_plain_means_what_typer_reads_in_it(arguments: list[str]) -> None:
    plain = tick_options(arguments)
    if plain is not None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            assert plain == read_by_typer(arguments, monkeypatch)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("run-due", {}),
        ("run-due --config c.yaml", {"config_path": "c.yaml"}),
        ("--config c.yaml -v run-due --json", {"config_path": "c.yaml", "verbose": True, "as_json": True}),
        ("run-due --limit 5 --workers 2 --fail-on never", {"limit": 5, "workers": 2, "fail_on": "never"}),
    ],
)
def test_what_cron_and_people_write_is_plain(line: str, options: dict[str, Any]) -> None:
    found = tick_options(line.split())
    assert found is not None
    if "config_path" in options:
        assert found.config_path.name == options.pop("config_path")
    assert {name: getattr(found, name) for name in options} == options


@pytest.mark.parametrize(
    "line",
    [
        "",
        "status",
        "run-due --help",
        "run-due --workers 65",
        "run-due --budget=30s",
        "run-due extra",
        "run-due --queue",
    ],
)
def test_what_needs_explaining_is_left_to_typer(line: str) -> None:
    assert tick_options(line.split()) is None


def test_a_shell_that_asks_for_completions_gets_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CRONJOBS_COMPLETE", "complete_bash")
    assert tick_options(["run-due"]) is None
