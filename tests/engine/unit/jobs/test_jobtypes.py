"""The settings of a job type, combined from the file, its code and the defaults."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.configfile import DATABASE, read

from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs import registry as jobs_module
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.jobs.registry import job
from cronjobs.model import ExitCodes, RetryPolicy

MIB = 2**20


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs_module, "_registered", {})


def loaded(yaml: str) -> JobTypes:
    settings = read(DATABASE + yaml)
    assert settings.problems == ()
    return job_types.load(settings)


def one(yaml: str = "", **said: Any) -> JobType:
    """The job type "t.x" of a handler with what ``@job`` said, under a file with an entry for it."""

    @job("t.x", **said)
    def handler() -> None: ...

    found = loaded(f"job_types: {{t.x: {{{yaml}}}}}")
    assert found.faults == ()
    return found.types["t.x"]


def test_nobody_said_anything() -> None:
    found = one()
    assert (found.isolation, found.max_memory, found.on_shutdown, found.on_lost) == ("thread", None, "release", "retry")
    assert found.durable == "group"
    assert found.exit_codes == ExitCodes(frozenset({0}), frozenset({65, 78}))
    assert found.timeout == timedelta(seconds=55) / 3


def test_what_the_code_says_counts() -> None:
    found = one(isolation="process", max_memory="512MiB", on_shutdown="drop", on_lost="dead", durable="each")
    assert (found.isolation, found.max_memory) == ("process", 512 * MIB)
    assert (found.on_shutdown, found.on_lost, found.durable) == ("drop", "dead", "each")


def test_what_the_file_says_wins_over_the_code() -> None:
    found = one(
        "isolation: process, max_memory: 64MiB, on_shutdown: release, on_lost: retry",
        isolation="process",
        max_memory=512 * MIB,
        on_shutdown="drop",
        on_lost="dead",
    )
    assert (found.isolation, found.max_memory, found.on_shutdown, found.on_lost) == (
        "process",
        64 * MIB,
        "release",
        "retry",
    )


def test_the_file_can_give_a_handler_back_to_a_thread() -> None:
    assert one("isolation: thread", isolation="process").isolation == "thread"


def test_each_retry_list_of_the_file_takes_the_place_of_the_codes() -> None:
    said = RetryPolicy(max_attempts=4, retry_on=[OSError], give_up_on=[KeyError, "billing.Declined"])
    found = one("retry: {give_up_on: [ValueError]}", retry=said).retry
    assert (found.max_attempts, found.retry_on, found.give_up_on) == (4, ("OSError",), ("ValueError",))


def test_a_list_of_classes_of_any_home_survives_the_files_changes() -> None:
    class Local(Exception): ...

    found = one("retry: {max_attempts: 2}", retry=RetryPolicy(give_up_on=[Local])).retry
    assert found.give_up_on == (f"{__name__}.{Local.__qualname__}",)


def test_a_command_has_a_process_and_what_its_entry_says() -> None:
    entry = "command: [ls], max_memory: 1GiB, on_lost: dead, success_exit_codes: [0, 3], retry_exit_codes: [65]"
    found = loaded(f"job_types: {{c: {{{entry}}}}}\nschedules: {{s: {{every: 1h, command: [ls]}}}}").types
    assert (found["c"].isolation, found["c"].max_memory, found["c"].on_lost) == ("process", 1024 * MIB, "dead")
    assert found["c"].exit_codes == ExitCodes(frozenset({0, 3}), frozenset({78}))
    assert (found["s"].isolation, found["s"].exit_codes) == ("process", ExitCodes())


def test_a_command_has_the_input_and_the_folder_of_its_entry_and_leaves_running_what_it_says() -> None:
    said = "command: [cat], stdin: hello, folder: /srv, leftovers: leave"
    found = loaded(f"job_types: {{a: {{{said}}}, b: {{command: [cat]}}}}").types
    assert (found["a"].stdin, found["a"].run_in, found["a"].leftovers) == ("hello", Path("/srv"), "leave")
    assert (found["b"].stdin, found["b"].run_in, found["b"].leftovers) == (None, None, "end")


def test_a_command_takes_nothing_from_a_handler_of_its_name() -> None:
    found = one("command: [ls]", isolation="process", max_memory="512MiB", on_lost="dead", timeout="5s")
    assert found.registration is None
    assert (found.max_memory, found.on_lost, found.timeout) == (None, "retry", timedelta(seconds=55) / 3)


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("max_memory: 64MiB", {}),
        ("isolation: thread", {"isolation": "process", "max_memory": "64MiB"}),
    ],
)
def test_a_memory_limit_without_a_process_disables_the_job_type(yaml: str, said: dict[str, Any]) -> None:
    @job("t.x", **said)
    def handler() -> None: ...

    found = loaded(f"job_types: {{t.x: {{{yaml}}}}}")
    assert found.types == {}
    assert [(fault.where, fault.what) for fault in found.faults] == [
        ("t.x", 'max_memory works only for a job in its own process: add "isolation: process"')
    ]


@pytest.mark.parametrize(("timeout", "is_long"), [("49s", False), ("50s", False), ("50001ms", True), ("30d", True)])
def test_a_declared_timeout_above_what_a_tick_has_makes_a_long_job(timeout: str, is_long: bool) -> None:
    assert one(f"timeout: {timeout}").is_long(RunSettings().longest_in_tick) is is_long
    assert one(timeout=timeout).is_long(RunSettings().longest_in_tick) is is_long


@pytest.mark.parametrize("budget", ["5s", "55s", "10m", "1h"])
def test_an_undeclared_timeout_never_makes_a_long_job(budget: str) -> None:
    @job("t.x")
    def handler() -> None: ...

    settings = read(f"{DATABASE}run: {{budget: {budget}}}")
    found = job_types.load(settings).types["t.x"]
    assert found.timeout == min(timedelta(seconds=30), settings.run.budget / 3)
    assert not found.is_long(settings.run.longest_in_tick)


def test_a_generator_as_a_handler_is_a_fault_of_that_type_alone() -> None:
    @job("t.generator")
    def generator() -> Any:
        yield 1

    @job("t.async_generator")
    async def async_generator() -> Any:
        yield 1

    class Callable:
        def __call__(self) -> Any:
            yield 1

    jobs_module._registered["t.callable"] = jobs_module.Registration("t.callable", Callable())
    jobs_module._registered["t.partial"] = jobs_module.Registration("t.partial", partial(generator))

    @job("t.coroutine")
    async def coroutine() -> None: ...

    @job("t.plain")
    def plain() -> list[int]:
        return [n for n in (1, 2)]  # noqa: C416

    found = loaded("")
    assert sorted(found.types) == ["t.coroutine", "t.plain"]
    assert [fault.where for fault in found.faults] == ["t.async_generator", "t.callable", "t.generator", "t.partial"]
    assert all("is a generator" in fault.what for fault in found.faults)


def test_a_handler_whose_signature_cannot_be_read_is_a_fault_of_that_type_alone() -> None:
    class Odd:
        __signature__ = "none"

        def __call__(self) -> None: ...

    jobs_module._registered["t.odd"] = jobs_module.Registration("t.odd", Odd())
    found = loaded("")
    assert found.types == {}
    assert "signature" in found.faults[0].what


@pytest.mark.parametrize("caught", [False, True])
def test_a_handler_whose_module_did_not_run_to_its_end_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caught: bool
) -> None:
    """Names that it uses may be missing; a whole module that the broken one imported is as good as ever."""
    (tmp_path / "half_whole.py").write_text("from cronjobs import job\n@job('half.whole')\ndef whole() -> None: ...\n")
    (tmp_path / "half_broken.py").write_text(
        "import half_whole\nfrom cronjobs import job\n"
        "@job('half.broken')\ndef broken() -> None: print(LATER)\n"
        "import there_is_no_such_module\nLATER = 1\n"
    )
    (tmp_path / "half_outer.py").write_text("try:\n    import half_broken\nexcept ImportError:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("half_")]:
        monkeypatch.delitem(sys.modules, name)
    found = loaded(f"imports: [{'half_outer' if caught else 'half_broken'}]\n")
    assert found.types.keys() & {"half.whole", "half.broken"} == {"half.whole"}
    [fault] = found.faults
    if caught:
        assert (fault.where, fault.what) == ("half.broken", "the import of its module half_broken did not finish")
    else:
        assert fault.what.startswith("cannot be imported: ModuleNotFoundError")
    (tmp_path / "half_broken.py").write_text(
        "from cronjobs import job\n@job('half.broken')\ndef broken() -> None: ...\n"
    )
    importlib.invalidate_caches()
    mended = loaded("imports: [half_broken]\n")
    assert mended.types.keys() >= {"half.whole", "half.broken"}
    assert mended.faults == ()
