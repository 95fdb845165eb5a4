"""The row of a run: its outcome, and as much of its output as a row may have."""

from __future__ import annotations

import pytest

from cronjobs import masking
from cronjobs.contrib.exec.arguments import WrongArguments, read_arguments, wants_help
from cronjobs.contrib.exec.copying import KEPT, OutputTail
from cronjobs.contrib.exec.run import ExecRun, output_text
from cronjobs.text import OUTPUT_LIMIT

FACTS = {"token": "1", "name": "backup", "locked_by": "h:b:n:1:2:1", "began": 1.7e9, "ended": 1.7e9, "took": 2.5}


@pytest.mark.parametrize(
    ("status", "more", "ends"),
    [
        (0, {}, ("succeeded", "succeeded", None, None)),
        (3 << 8, {}, ("dead", "failed", "exit-3", "exit status 3: the last line")),
        (65 << 8, {}, ("dead", "failed", "exit-65", "exit status 65: the last line")),
        (15, {}, ("dead", "failed", "SIGTERM", "killed by SIGTERM: the last line")),
        (
            9 | 0x80,
            {},
            ("dead", "failed", "SIGKILL", "killed by SIGKILL (by hand, or because memory ran out): the last line"),
        ),
        (127 << 8, {"failure": "not found"}, ("dead", "failed", "exit-127", "exit status 127: not found")),
    ],
)
def test_the_wait_status_decides(status: int, more: dict[str, str], ends: tuple[str | None, ...]) -> None:
    facts = FACTS | {"status": status, "output": b"some\nthe last line\n", "output_size": 19} | more
    finish = ExecRun.read(facts).finish(7)
    assert (finish.status, finish.outcome, finish.error_type, finish.error) == ends
    assert finish.duration is not None
    assert finish.duration.total_seconds() == 2.5
    assert finish.run_at is None, "it is never tried again"


def test_of_any_bytes_the_last_that_fit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output_text(b"", 0) is None
    assert output_text(b"a\xff\0b\n", 5) == "a\ufffd\\x00b\n"
    tail = OutputTail()
    for number in range(40_000):
        tail.add(b"%d\xff\n" % number)
    assert len(tail.bytes()) == KEPT
    text = output_text(tail.bytes(), tail.size)
    assert text is not None
    assert len(text.encode()) <= OUTPUT_LIMIT
    first, *_, last = text.splitlines()
    assert (last, "bytes before this were not kept" in first) == ("39999\ufffd", True)
    monkeypatch.setattr(masking, "_remembered", frozenset({"hunter2hunter2"}))
    assert output_text(b"token hunter2hunter2", 20) == "token ***"
    torn = output_text(b"er2hunter2, and more", 40)
    assert torn is not None
    assert torn.endswith(" not kept …\n***, and more")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exec", "the run needs a name"),
        ("exec a", "give the command once"),
        ("exec a -c x -- y", "give the command once"),
        ("exec a --", "give the command once"),
        ("exec a b -- c", 'unexpected "b" after the name'),
        ("exec a/b -- c", "is not a valid name"),
        ("exec a --every -- c", "there is no option --every"),
        ("exec a -c", "-c needs a value"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_runs(line: str, said: str) -> None:
    with pytest.raises(WrongArguments, match=said):
        read_arguments(line.split())


def test_options_stand_anywhere_before_the_program_and_nothing_after_it_is_ours() -> None:
    words = [
        "--config",
        "a.yaml",
        "-v",
        "exec",
        "--cron=@daily",
        "name",
        "--database-url",
        "u",
        "--",
        "x",
        "-c",
        "--help",
    ]
    given = read_arguments(words)
    assert (given.name, given.config, given.database_url, given.cron) == ("name", "a.yaml", "u", "@daily")
    assert given.argv == ["x", "-c", "--help"]
    assert not wants_help(words)
    assert not wants_help(["exec", "a", "-c", "--help"])
    assert wants_help(["exec", "-h"])
