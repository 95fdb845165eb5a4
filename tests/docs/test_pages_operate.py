"""The pages for operators: their commands run and print what the pages show, and everything that they name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import insert
from support.pages import ROOT, Page
from support.project import Project

from cronjobs import errors
from cronjobs.clock import SYSTEM
from cronjobs.contrib.doctor import release
from cronjobs.contrib.metrics import families
from cronjobs.desk.crontab import program
from cronjobs.desk.insight import leftovers as outside
from cronjobs.desk.rules.finding_kinds import FINDING_KINDS
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.database import tables

pytestmark = pytest.mark.either

DEPLOY = ROOT / "examples" / "deploy"
PAGES = {
    "how-to/containers": {"dockerfile": 1, "console": 4, "crontab": 1},
    "explanation/security": {},
    "how-to/troubleshooting": {"console": 11},
    "how-to/operating": {"": 1, "console": 8, "sql": 2},
}
DOCTORS = 1  # of troubleshooting.md's blocks: test_page_troubleshooting_and_books.py

HANDLERS = """
import cronjobs
@cronjobs.job("t.work", retry=cronjobs.RetryPolicy(max_attempts=1))
def work(): raise ConnectionError("no route")
"""
YAML = """
environment: production
schedules: {nightly-report: {cron: "15 2 * * *", job: t.work}}
"""


def page(name: str) -> Page:
    return Page(f"docs/{name}.md")


@pytest.fixture
def typed(tmp_path: Path, sqlite_migrated: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project without a line in the crontab, whose database is there."""
    monkeypatch.setattr(program, "read", lambda: "")
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(YAML, HANDLERS)
    assert project.call("db", "adopt").code == 0
    return project


@pytest.mark.parametrize("name", PAGES)
def test_no_block_is_left_out_and_no_link_is_dead(name: str) -> None:
    assert page(name).counts() == PAGES[name]
    assert page(name).dead_links() == []


def typed_lines(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def call(project: Project, line: str) -> Any:
    found = project.call(*shlex.split(line)[1:])
    assert "Traceback" not in found.err, found.err
    return found


# --- troubleshooting --------------------------------------------------------------------------------------------------


def enqueue(project: Project, job_type: str, **columns: object) -> None:
    project.execute(insert(tables.jobs).values(job_type=job_type, payload={}, **columns))


def test_each_symptom_prints_what_the_page_says(typed: Project) -> None:
    long_ago = SYSTEM.now().replace(year=2020)
    enqueue(typed, "billing.remind", run_at=long_ago)
    enqueue(typed, "t.work", run_at=long_ago)
    misfit = {"error_type": "SignatureMismatch", "last_error": "payload.customer_id is not a str"}
    enqueue(typed, "billing.invoice", misfit_since=long_ago, **misfit)
    found = page("how-to/troubleshooting").blocks("console")[:-DOCTORS]
    assert len(found) == PAGES["how-to/troubleshooting"]["console"] - DOCTORS
    for block in found:
        answer, line = None, ""
        for line in typed_lines(block.text):
            answer = call(typed, line)
            assert answer.code in (0, 1), (line, answer)
        assert answer is not None
        said = " ".join((answer.out + answer.err).split())
        for shown in [each for each in block.text.splitlines() if not each.startswith("$ ")]:
            for expected in shown.split("…"):
                assert " ".join(expected.split()) in said, (line, said)


def test_the_sentences_of_the_database_are_those_that_are_raised() -> None:
    raised = Path(errors.__file__).read_text() + (ROOT / "cronjobs/engine/database/error_mapping.py").read_text()
    for row in page("how-to/troubleshooting").table("What the database says"):
        for said in re.findall(r"`([^`]+)`", row["a tick prints"]):
            if said not in ("does not exist",):  # PostgreSQL's own words
                assert said in raised, said


def test_each_exit_code_is_told() -> None:
    codes = [row["code"] for row in page("how-to/troubleshooting").table("The exit code of a tick")]
    assert codes == ["0", "1", "2", "3", "4", "70", "128+n", "137, 142", "143"]


# --- the release, the upgrade, the end --------------------------------------------------------------------------------


def test_the_checklists_own_items_are_listed() -> None:
    listed = [row["item"] for row in page("how-to/operating").table("The other items")]
    own = re.findall(r'ReleaseItem\(\s*"([a-z ]+)"', Path(release.__file__).read_text())
    own = [name for name in dict.fromkeys(own) if name not in ("check", "findings")]
    assert listed == own + [each.item for each in release.QUESTIONS]
    assert f"more than {release.MANY_TRIES} times" in page("how-to/operating").text


@pytest.mark.parametrize("says", ["doctor --release", "--wait 60s", "cronjobs db upgrade\n"])
def test_the_commands_around_a_release_can_be_typed(typed: Project, says: str) -> None:
    for line in typed_lines(page("how-to/operating").block("console", says)):
        assert call(typed, line).code in (0, 1), line


def test_the_last_commands_take_everything_away(typed: Project) -> None:
    restore, remove, dry, drop = typed_lines(page("how-to/operating").block("console", "db drop"))
    assert call(typed, restore).code == 0
    assert call(typed, remove).code == 0
    assert "would drop table cronjobs_jobs" in call(typed, dry).out
    assert call(typed, f"{drop} --yes").code == 0
    listed = page("how-to/operating").text
    for end in outside.BESIDE_SQLITE:
        assert f"`{end}`" in listed
    for folder in outside.UNIT_FOLDERS:
        assert f"`{folder}`" in listed


# --- systemd, containers ----------------------------------------------------------------------------------------------


def test_systemds_page_shows_what_the_command_says_next(typed: Project) -> None:
    answer = call(typed, page("how-to/containers").block("console", "systemd --out").removeprefix("$ "))
    then = "\n".join(typed_lines(page("how-to/containers").block("console", "sudo cp")))
    assert all(line in answer.err for line in then.splitlines())
    service = (typed.folder / "units" / "cronjobs-shop.service").read_text()
    for setting in ("SuccessExitStatus=1 143", "KillMode=process", "OOMPolicy=continue"):
        assert f"`{setting}`" in page("how-to/containers").text
        assert f"{setting}\n" in service


def without_comments(file: str) -> str:
    lines = [line for line in (DEPLOY / file).read_text().splitlines() if not re.match(r"\s*(#|$)", line)]
    return "\n".join(lines) + "\n"


def test_the_pages_show_the_files_that_are_there() -> None:
    assert page("how-to/containers").block("dockerfile", "FROM") == without_comments("Dockerfile")
    assert page("how-to/operating").block("", "rotate") == without_comments("logrotate")
    whole = (DEPLOY / "kubernetes.yaml").read_text()
    for row in page("how-to/containers").table("Kubernetes"):
        setting = row["setting"].strip("`")
        name, _, value = setting.partition(": ")
        words = setting.replace("-", " ").split() if not value else [name, value.strip('"')]
        assert all(word in whole.replace("-", " ") or word in whole for word in words), setting


def test_the_image_has_what_it_runs_and_is_nobody_in_particular() -> None:
    lines = without_comments("Dockerfile").splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert {*copied} == {"requirements.txt", "cronjobs.yaml", "jobs.py", "ticks.sh"}
    assert all((DEPLOY / file).is_file() for file in copied)
    user = lines.index("USER 10001")
    assert not [line for line in lines[user:] if line.startswith("RUN")]
    assert "--uid 10001" in lines[1]


def seconds(text_: str) -> int:
    assert text_.endswith("s")
    return int(text_[:-1])


def test_a_stop_has_time_for_the_jobs_that_run() -> None:
    least = RunSettings().shutdown_grace.total_seconds() + 5
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert seconds(services["ticks"]["stop_grace_period"]) > least
    assert services["ticks"]["init"] is True
    assert services["ticks"]["volumes"] == ["state:/var/lib/cronjobs"]
    assert "XDG_STATE_HOME=/var/lib/cronjobs" in without_comments("Dockerfile")
    pod = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > least
    assert pod["securityContext"]["runAsUser"] == 10001


@pytest.mark.slow
def test_the_containers_commands_work_in_their_folder(
    tmp_path: Path, postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    [pod] = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["jobTemplate"]["spec"]["template"]["spec"][
        "containers"
    ]
    given = {each["name"] for each in pod["env"]}
    assert given == {*services["ticks"]["environment"]}
    for file in ("cronjobs.yaml", "jobs.py"):
        (tmp_path / file).write_text((DEPLOY / file).read_text())
    monkeypatch.setenv("DATABASE_URL", postgres_migrated)
    project = Project(tmp_path, postgres_migrated)
    assert call(project, "cronjobs check").code == 0
    assert call(project, " ".join(services["migrate"]["command"])).out.endswith("nothing to do\n")
    environment = {"DATABASE_URL": postgres_migrated, "CRONJOBS_HOST": "pod", "XDG_STATE_HOME": str(tmp_path)}
    ticked = project.run(*pod["command"][1:], env=environment)
    assert (ticked.code, ticked.err) == (0, "")
    project.url = postgres_migrated
    assert [row["host"] for row in project.rows("ticks")] == ["pod"]


# --- a second host ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_host_shares_the_work_and_is_listed(typed: Project) -> None:
    typed.write("environment: production\njob_types: {t.quick: {command: ['true']}}\n")
    for _ in range(2):
        assert typed.call("enqueue", "t.quick").code == 0
    for host in ("web1", "web2"):
        assert typed.run("run-due", "--limit", "1", env={"CRONJOBS_HOST": host}).code == 0
    assert [row["host"] for row in typed.rows("ticks")] == ["web1", "web2"]
    assert [row["status"] for row in typed.rows("jobs")] == ["succeeded", "succeeded"]
    for line in typed_lines(page("how-to/hosts").block("console", "audit")):
        assert call(typed, line).code == 0
    assert {*re.findall(r"web[0-9]", typed.call("status").out)} == {"web1", "web2"}


# --- monitoring -------------------------------------------------------------------------------------------------------


def test_its_command_can_be_typed(typed: Project) -> None:
    [line] = typed_lines(page("how-to/alerts").block("console", "check --live"))
    assert call(typed, line).code in (0, 1)


def test_monitoring_names_findings_and_figures_that_there_are() -> None:
    watched = [
        name
        for row in page("how-to/alerts").table("What to monitor")
        for name in re.findall(r"`(\w+)`", row["finding"])
    ]
    assert {*watched} <= FINDING_KINDS.keys()
    assert len(watched) == len({*watched})
    defined = Path(families.__file__).read_text()
    drawn = page("how-to/alerts").text.partition("Three graphs are useful, too")[2].partition("\n\n")[0]
    named = {*re.findall(r"cronjobs_\w+", drawn)}
    assert len(named) == 3
    for name in named:
        assert name.removesuffix("_total").removeprefix("cronjobs_") in defined, name
