"""The reader does what the tables of keys say: examples, defaults, and the JSON Schema that is made from them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from support.configfile import DATABASE, cases, read, with_examples
from support.pages import ROOT, Page

from cronjobs.desk.cli.schema import schema
from cronjobs.desk.init.starter import starter_yaml
from cronjobs.engine.config import environment
from cronjobs.engine.config.reference import Row, json_schema, sections
from cronjobs.engine.config.settings import Settings
from cronjobs.errors import ConfigError

SCHEMA = Draft7Validator(json_schema())
ENVIRON = {"DATABASE_URL": "sqlite:///x.db", "SMTP_PASSWORD": "canary-4711"}

TLS_FILES = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
# What else an entry needs, and what does not go together with a key: both as the messages of the reader ask for.
NEEDED: dict[str, dict[str, Any]] = {
    "alerts.channels.NAME": {"command": ["page"]},
    "alerts.channels.NAME.mail": {"host": "h", "from": "a@b.c", "to": "d@e.f"},
    "alerts.channels.NAME.webhook": {"url": "https://h"},
    "alerts.thresholds.NAME": {"of": "dead", "more_than": 5, "within": "1h"},
    "executors.NAME": {"dask": "tls://scheduler:8786", "tls": TLS_FILES},
    "executors.NAME.tls": TLS_FILES,
    "limits.NAME": {"most": 4},
    "queues.NAME": {"max_waiting": 10},
    "schedules.NAME": {"cron": "0 2 * * *", "job": "t.work"},
}
INSTEAD_OF = {"every": "cron", "command": "job", "mail": "command", "webhook": "command"}
TOGETHER: dict[str, dict[str, Any]] = {
    "user": {"password": "p"},
    "password": {"user": "u"},
    "inherit_env": {"command": ["x"]},
    "success_exit_codes": {"command": ["x"]},
    "retry_exit_codes": {"command": ["x"]},
    "stdin": {"command": ["x"]},
    "folder": {"command": ["x"]},
    "leftovers": {"command": ["x"]},
    "base": {"cap": "2h"},
    "cap": {"base": "1m"},
}

BESIDE: dict[str, dict[str, Any]] = {"executors.NAME": {"dask": "tls://scheduler:8786"}}
ELSEWHERE: dict[str, dict[str, Any]] = {"executor": {"executors": {"cluster": {"dask": "tcp://127.0.0.1:8786"}}}}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".env").touch()
    Path("src").mkdir()


def file_with(path: str, name: str, value: Any) -> str:
    """A file in which the key *name* of the mapping at *path* has *value*."""
    together = {} if path == "defaults.commands" else TOGETHER.get(name, {})
    entry: dict[str, Any] = NEEDED.get(path, {}) | together
    if path != "job_types.NAME":
        entry.pop(INSTEAD_OF.get(name, ""), None)
    entry[name] = value
    parts = path.split(".") if path else []
    for place in range(len(parts), 0, -1):
        entry = BESIDE.get(".".join(parts[: place - 1]), {}) | {parts[place - 1]: entry}
    entry = {"database": "sqlite:///x.db"} | ELSEWHERE.get(name, {}) | entry
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True)


def what_it_means(text: str) -> Settings:
    found = read(text, ENVIRON)
    return replace(found, contents={}, positions={}, secrets=frozenset(), variables=())


def found_wrong(text: str) -> bool:
    try:
        return bool(read(text, ENVIRON).problems)
    except ConfigError:
        return True


def refused_by_schema(text: str) -> list[str]:
    return [error.message for error in SCHEMA.iter_errors(yaml.safe_load(text))]


ROWS = [(path, row) for section in sections() for path in section.paths for row in section.rows]


def test_there_is_a_row_for_each_key_and_the_schema_is_one() -> None:
    Draft7Validator.check_schema(json_schema())
    assert len(ROWS) > 100
    assert json.dumps(json_schema()).count('"additionalProperties": false') >= len(sections())


@pytest.mark.parametrize(("path", "row"), ROWS, ids=[f"{path}.{row.name}" for path, row in ROWS])
def test_the_example_is_valid_the_default_changes_nothing_and_the_schema_takes_both(path: str, row: Row) -> None:
    text = file_with(path, row.name, yaml.safe_load(row.key.example))
    found = read(text, ENVIRON)
    assert (found.problems, refused_by_schema(text)) == ((), [])
    assert row.key.sentence.endswith(".")
    assert not row.key.sentence.isupper()
    if row.key.unset:
        return
    with_default = file_with(path, row.name, yaml.safe_load(row.default))
    assert row.default != row.key.example
    assert refused_by_schema(with_default) == []
    if path in ("defaults.retry", "job_types.NAME.retry"):  # what is written there goes before @job, so it is kept
        changes = dict((found.retry if path == "defaults.retry" else found.job_types["NAME"].retry).changes)
        assert row.name in changes
        return
    without = re.sub(rf"(?m)^\s*{row.name}: .*\n", "", with_default)
    assert what_it_means(with_default) == what_it_means(without)


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema()
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_first_file_is_valid_and_so_is_each_example_in_it() -> None:
    text = starter_yaml(timezone="Europe/Berlin", project="shop", changed={}, handlers="jobs.py")
    assert refused_by_schema(text) == refused_by_schema(with_examples(text)) == []


def test_files_that_we_show_are_valid() -> None:
    texts = [file.read_text() for file in ROOT.glob("examples/**/cronjobs.yaml")]
    for page in ["README.md", *(str(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*.md"))]:
        texts += [block.text for block in Page(page).blocks("yaml")]
    keys = json_schema()["properties"].keys()
    ours = [text for text in texts if isinstance(yaml.safe_load(text), dict) and yaml.safe_load(text).keys() <= keys]
    assert len(ours) >= 17
    assert {text: found for text in ours if (found := refused_by_schema(text))} == {}


BROKEN = cases("""
tiemzone: UTC
database: mysql://h/x
project: ""
env: [LANG]
imports: billing.jobs
run: {workers: 0}
run: {workers: four}
run: {budget: 55}
run: {budget: 55 s}
run: {lingr: true}
run: {linger: sometimes}
run: {trust_files: "yes"}
run: {ping: nowhere}
retention: {succeeded: forever}
limits: {"smtp:": 0}
limits: {"smtp:": {at_most: 4}}
queues: {mail: {on_full: drop}}
queues: {mail: {max_waiting: 10, on_full: explode}}
job_types: {a: {timeout: 20}}
job_types: {a: {command: []}}
job_types: {a: {isolation: fork}}
job_types: {a: {max_memory: much}}
job_types: {a: {retry: {attempts: 3}}}
job_types: {a: {success_exit_codes: [256]}}
job_types: {"a b": {timeout: 20s}}
schedules: {a: {job: x}}
schedules: {a: {cron: "0 2 * * *"}}
schedules: {a: {cron: "0 2 * * *", every: 5m, job: x}}
schedules: {a: {cron: "0 2 * *", job: x}}
schedules: {a: {cron: "0 0 2 * * *", job: x}}
schedules: {a: {cron: "@reboot", job: x}}
schedules: {a: {every: 5m, job: x, command: [y]}}
schedules: {a: {every: 5m, job: x, catch_up: some}}
schedules: {a: {every: 5m, job: x, payload: [1]}}
schedules: {a: {every: 5m, job: x, priority: 10}}
schedules: {a: {every: 5m, job: x, retry_until: tomorrow}}
alerts: {severity: mild}
alerts: {ignore: [dea]}
alerts: {channels: {a: {}}}
alerts: {channels: {a: {command: [x], webhook: {url: "http://x"}}}}
alerts: {channels: {a: {mail: {host: h, from: a, to: [b@c.d]}}}}
alerts: {channels: {a: {mail: {host: h, from: a@b.c}}}}
alerts: {thresholds: {t: {of: late, more_than: 1, within: 1h}}}
""")


@pytest.mark.parametrize("text", [text for text, _ in BROKEN])
def test_an_editor_marks_what_the_reader_refuses(text: str) -> None:
    assert refused_by_schema(text)
    assert found_wrong(text if text.startswith("database") else DATABASE + text)


def test_an_editor_says_what_is_expected_and_marks_the_key_that_is_too_many() -> None:
    """Seen in the YAML language server: of "oneOf" it says no more than "matches multiple schemas", at the schedule."""
    text = 'schedules: {a: {cron: "0 2 * * *", every: 5m, job: x, command: [ls]}}'
    found = {error.message for error in Draft7Validator(json_schema()).iter_errors(yaml.safe_load(text))}
    assert found == {"False schema does not allow '5m'", "False schema does not allow ['ls']"}
    keys = json_schema()["properties"]["schedules"]["additionalProperties"]["properties"]
    assert keys["timeout"]["errorMessage"] == "Expected: duration, 100ms–30d; for example 40s"
    assert keys["command"]["errorMessage"].startswith("Expected: list: program and arguments, no shell; for example [")
    assert "errorMessage" not in json_schema()["properties"]["run"]  # it would hide which key is unknown


def test_a_variable_may_stand_wherever_a_value_does() -> None:
    text = DATABASE + 'timezone: ${TZ}\nrun: {workers: "${N}", budget: "${B}", linger: "${L}"}\nlog: ${LOG}\n'
    assert refused_by_schema(text) == []
    assert read(text, {"TZ": "UTC", "N": "3", "B": "50s", "L": "true", "LOG": "a.log"}).problems == ()


@pytest.mark.needs("contrib")
def test_every_variable_of_the_environment_is_listed() -> None:
    package = ROOT / "cronjobs"
    texts = [file.read_text() for file in package.rglob("*.py") if file.name != "environment.py"]
    named = {name for text in texts for name in re.findall(r"\b_?CRONJOBS_[A-Z_]+\b", text)}
    listed = {*environment.READ, *environment.GIVEN, *environment.INTERNAL}
    assert named == {name for name in listed if "CRONJOBS_" in name}
