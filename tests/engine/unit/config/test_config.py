"""What cronjobs.yaml may contain, and the exact messages and positions of faults, because people rely on these."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.configfile import DATABASE, cases, problems, read, refusal

from cronjobs.engine.config.keys import FILE
from cronjobs.engine.config.load import FATAL
from cronjobs.engine.config.reader import ConfigKey, ReaderOfExtra
from cronjobs.engine.config.settings import RetryChanges
from cronjobs.engine.rules.capacity import Cap
from cronjobs.model import RetryPolicy


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- a whole file -----------------------------------------------------------------------------------------------------

EVERYTHING = """
project: shop
environment: production
env_file: .env
schema: jobs
database: ${DATABASE_URL}
imports: [billing.jobs, reports.jobs]
python_path: [src]
setup: django.setup
env: {LANG: C.UTF-8}
timezone: Europe/Berlin
run: {workers: 4, budget: 55s, lease: 60s, shutdown_grace: 10s, long_jobs: 4, max_losses: 10, every: 1m}
defaults: {retry: {max_attempts: 7}}
log: cronjobs.log
queues: {mail: {max_waiting: 10000, on_full: error}}
limits: {"smtp:": 4}
retention: {succeeded: 14d, dead: 90d, keys: 365d, occurrences: 90d, effects: 365d}

job_types:
  backup:
    command: [pg_dump, --file, /backup/app.sql, app]
    timeout: 20m
  billing.send_invoice: {retry: {max_attempts: 5, delays: [5s, 1m]}}

schedules:
  nightly-report:
    cron: "15 2 * * *"
    timezone: America/New_York
    job: reports.nightly
    payload: {region: us}
    catch_up: latest
    catch_up_within: 24h
    overlap: skip
  refresh-cache: {every: 10m, job: cache.refresh}
"""


def test_the_file_of_the_design_is_read(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / ".env").write_text("DATABASE_URL=postgresql://app@db/shop\n")
    found = read(EVERYTHING)
    assert found.problems == ()
    assert found.queues == {"mail": Cap("mail", 10000, "error")}
    assert (found.file, found.folder) == (tmp_path / "cronjobs.yaml", tmp_path)
    assert (found.project, found.environment, found.schema) == ("shop", "production", "jobs")
    assert found.database == "postgresql://app@db/shop"
    assert (found.imports, found.setup) == (("billing.jobs", "reports.jobs"), "django.setup")
    assert (found.python_path, found.log) == ((tmp_path / "src",), tmp_path / "cronjobs.log")
    assert dict(found.env) == {"LANG": "C.UTF-8", "DATABASE_URL": "postgresql://app@db/shop"}
    assert found.retry == RetryChanges((("max_attempts", 7),))
    assert found.disabled_job_types == set()
    assert found.job_types["backup"].timeout == timedelta(minutes=20)
    retry = found.job_types["billing.send_invoice"].retry.apply(RetryPolicy())
    assert (retry.max_attempts, retry.delays) == (5, (timedelta(seconds=5), timedelta(minutes=1)))
    nightly, cache = found.schedules["nightly-report"], found.schedules["refresh-cache"]
    assert (nightly.cron, nightly.timezone, nightly.job) == ("15 2 * * *", "America/New_York", "reports.nightly")
    assert (nightly.payload, nightly.catch_up_within) == ({"region": "us"}, timedelta(hours=24))
    assert (cache.every, cache.timezone, cache.cron) == (timedelta(minutes=10), "Europe/Berlin", None)
    assert found.positions["schedules.nightly-report.job"] == (29, 10)
    assert found.positions["schedules.refresh-cache"] == (34, 3)


def test_every_problem_is_said_at_once_in_the_order_of_the_lines() -> None:
    text = """\
run: {workers: 100}
schedules:
  a: {cron: * * * * *, job: x}
  b:
    cron: 61 2 * * *
    jbo: x
  c:
    cron: @daily
    priority: 10
"""
    assert refusal(text) == [
        'cronjobs.yaml: no database is set: add "database: sqlite:///cronjobs.db" or "database: ${DATABASE_URL}"',
        'cronjobs.yaml:1:16: run.workers: "100" is not in 1–64',
        'cronjobs.yaml:3:13: a cron expression must be quoted: cron: "* * * * *"',
        "cronjobs.yaml:5:11: schedules.b.cron: minute 61 is not in 0–59",
        'cronjobs.yaml:6:5: schedules.b.jbo: unknown key, did you mean "job"?',
        (
            "cronjobs.yaml:7:3: schedules.c: this schedule runs nothing: "
            'write "job: billing.send_invoice" or "command: [backup, --all]"'
        ),
        'cronjobs.yaml:8:11: a cron expression must be quoted: cron: "@daily"',
        'cronjobs.yaml:9:15: schedules.c.priority: "10" is not in 0–9',
    ]


def test_a_file_that_says_only_where_the_database_is_has_the_defaults() -> None:
    found = read(DATABASE)
    assert found.problems == ()
    assert found.run.workers == 4
    assert (found.log, found.timezone, found.imports) == (None, "UTC", ())


# --- values -----------------------------------------------------------------------------------------------------------

# One line, written below `database:`, and what is said of it. The rest of the file still runs.
BAD_VALUES = cases(r"""
run: {workers: 010}
    2:16: run.workers: "010" is octal to some YAML readers: write it without the leading 0
run: {workers: four}
    2:16: run.workers: "four" is not a whole number: write a number in 1–64
run: {workers: 0}
    2:16: run.workers: "0" is not in 1–64
run: {workers: 65}
    2:16: run.workers: "65" is not in 1–64
run: {workers: [1]}
    2:16: run.workers: write one value, not a list
run: {workers: }
    2:16: run.workers: there is no value here: write one, or delete the key
run: {budget: 4s}
    2:15: run.budget: "4s" is not in 5s–1h
run: {budget: 61m}
    2:15: run.budget: "61m" is not in 5s–1h
run: {budget: 55}
    2:15: run.budget: "55" has no unit: write it as 55s, 10m, 24h or 7d
run: {budget: 1:30}
    2:15: run.budget: "1:30" is ambiguous (YAML 1.1 reads it as a number): write 1m30s or 1h30m
run: {budget: soon}
    2:15: run.budget: "soon" is not a duration: write it as 55s, 10m, 24h or 7d
run: {lease: 1s}
    2:14: run.lease: "1s" is not in 2s–1d
run: {every: 59s}
    2:14: run.every: "59s" is not in 1m–1d
run: 4
    2:6: run: write it as a mapping: workers: …
run: {worker: 4}
    2:7: run.worker: unknown key, did you mean "workers"?
retention: {succeeded: 14}
    2:24: retention.succeeded: "14" has no unit: write it as 55s, 10m, 24h or 7d
timezone: europe/berlin
    2:11: timezone: "europe/berlin" is not a time zone: did you mean Europe/Berlin?
timezone: Berlin/Europe
    2:11: timezone: "Berlin/Europe" is not a time zone: did you mean Europe/Berlin?
timezone: New York/America
    2:11: timezone: "New York/America" is not a time zone: did you mean America/New_York?
timezone: UTC+1
    2:11: timezone: "UTC+1" is not a time zone: a fixed offset has no summer time: write a place, such as Europe/Berlin,
    or Etc/GMT-1 for this offset all year
timezone: America
    2:11: timezone: "America" is not a time zone: write UTC or Europe/Berlin
imports: billing.jobs
    2:10: imports: write a list: [billing.jobs]
imports: jobs.py
    2:10: imports: write a list: [jobs]
imports: [a.b, billing/jobs.py]
    2:16: imports[1]: "billing/jobs.py" is not a module: write it as in an import statement, billing.jobs for
    billing/jobs.py
python_path: [nowhere]
    2:15: python_path[0]: "nowhere" is not a folder (a relative path starts at the folder of cronjobs.yaml)
setup: setup
    2:8: setup: "setup" is not a function in a module: write it like django.setup
log: ~/cron.log
    2:6: log: "~/cron.log" begins with ~, but HOME might not be set under cron: write the full path
env: {1ST: x}
    2:7: env.1ST: "1ST" is not the name of a variable: write letters, digits and _
env: {A: [1]}
    2:10: env.A: write one value, not a list
defaults: {retry: {jitter: 1}}
    2:28: defaults.retry.jitter: "1" is not in 0–0.99
defaults: {retry: {base: 1h}}
    2:19: defaults.retry: base must be above zero and at most cap; the defaults are base 1m and cap 30m: write both
defaults: {retry: {delays: [1s], cap: 1m}}
    2:19: defaults.retry: delays cannot be combined with cap: write one or the other
job_types: {a: {command: pg_dump app}}
    2:26: job_types.a.command: a command is a list, without a shell: write [pg_dump, app]
job_types: {a: {command: pg_dump app > "/backup/app 1.sql"}}
    2:26: job_types.a.command: a command is a list, without a shell: write [sh, -c, "pg_dump app > \"/backup/app
    1.sql\""]
job_types: {a: {command: "find /tmp -name 'x y' -delete"}}
    2:26: job_types.a.command: a command is a list, without a shell: write [find, /tmp, -name, "x y", -delete]
job_types: {a: {command: []}}
    2:26: job_types.a.command: the command is empty: write a list such as [pg_dump, app]
defaults: {retry: {retry_on: []}}
    2:30: defaults.retry.retry_on: the list is empty: nothing would be retried; to retry all, delete the key
defaults: {retry: {retry_on: OSError}}
    2:30: defaults.retry.retry_on: write a list: [OSError]
defaults: {retry: {give_up_on: [ValueError, "card declined"]}}
    2:45: defaults.retry.give_up_on[1]: "card declined" is not a kind of failure: write ValueError,
    billing.CardDeclined, exit-3, SIGKILL or TimedOut
defaults: {retry: {giveup_on: [ValueError]}}
    2:20: defaults.retry.giveup_on: unknown key, did you mean "give_up_on"?
job_types: {a: {timeout: 31d}}
    2:26: job_types.a.timeout: "31d" is not in 100ms–30d
job_types: {a: {isolation: fork}}
    2:28: job_types.a.isolation: "fork" is not one of thread, process
job_types: {a: {isolation: process, command: [ls]}}
    2:28: job_types.a.isolation: a command always has a process of its own: delete "isolation"
job_types: {a: {max_memory: 512M, isolation: process}}
    2:29: job_types.a.max_memory: "512M" is not a size: write it as 512MiB, 2GiB or 500MB
job_types: {a: {max_memory: 512, isolation: process}}
    2:29: job_types.a.max_memory: "512" bytes is not in 16MiB–16TiB
job_types: {a: {max_memory: 15MiB, command: [ls]}}
    2:29: job_types.a.max_memory: "15MiB" is not in 16MiB–16TiB
job_types: {a: {max_memory: 1GiB, isolation: thread}}
    2:29: job_types.a.max_memory: a thread cannot have a memory limit of its own; write "isolation: process"
job_types: {a: {on_shutdown: cancel}}
    2:30: job_types.a.on_shutdown: "cancel" is not one of release, drop
job_types: {a: {durable: yes}}
    2:26: job_types.a.durable: "yes" is not one of group, each
job_types: {a: {on_lost: drop}}
    2:26: job_types.a.on_lost: "drop" is not one of retry, dead
job_types: {a: {on_los: dead}}
    2:17: job_types.a.on_los: unknown key, did you mean "on_lost"?
job_types: {a: {executor: cluster}}
    2:27: job_types.a.executor: no executor is named "cluster": add "cluster: {dask: …}" under the key "executors"
job_types: {a: {command: [ls], success_exit_codes: [0, 256]}}
    2:56: job_types.a.success_exit_codes[1]: "256" is not in 0–255
job_types: {a: {command: [ls], success_exit_codes: 3}}
    2:52: job_types.a.success_exit_codes: write a list: [3]
job_types: {a: {command: [ls], success_exit_codes: []}}
    2:52: job_types.a.success_exit_codes: the list is empty: no exit code would mean success; to accept
    only 0, delete the key
job_types: {a: {command: [ls], success_exit_codes: [0, 3], retry_exit_codes: [65, 3]}}
    2:78: job_types.a.retry_exit_codes: exit code 3 means success: delete it here, or write success_exit_codes
    without it
job_types: {a: {command: [ls], retry_exit_codes: [0]}}
    2:50: job_types.a.retry_exit_codes: exit code 0 means success: delete it here, or write success_exit_codes
    without it
job_types: {a: {success_exit_codes: [0, 3]}}
    2:37: job_types.a.success_exit_codes: exit codes are for an entry with a command: a handler raises GiveUp or
    RetryLater
job_types: {a: {stdin: yes}}
    2:24: job_types.a.stdin: "stdin" needs a command: a handler reads its payload
job_types: {a: {command: [cat], stdin: [yes]}}
    2:40: job_types.a.stdin: write one value, not a list
job_types: {a: {command: [cat], stdin: }}
    2:40: job_types.a.stdin: there is no value here: write one, or delete the key
job_types: {a: {folder: /srv}}
    2:25: job_types.a.folder: "folder" needs a command: a handler runs in the tick's folder
job_types: {a: {command: [ls], folder: ~/app}}
    2:40: job_types.a.folder: "~/app" begins with ~, but HOME might not be set under cron: write the full path
job_types: {a: {leftovers: leave}}
    2:28: job_types.a.leftovers: "leftovers" needs a command: a handler must end its own processes
job_types: {a: {command: [ls], leftovers: keep}}
    2:43: job_types.a.leftovers: "keep" is not one of end, leave
job_types: {a b: {}}
    2:13: job_types.a b: "a b" is not a name: up to 100 of A–Z a–z 0–9 _ . : -
schedules: {a: {every: 30s, job: x}}
    2:24: schedules.a.every: cron starts a tick once a minute: write 1m or more, or keep ticks running (run.linger)
schedules: {a: {every: 60500ms, job: x}}
    2:24: schedules.a.every: "60500ms" is not a whole number of seconds
schedules: {a: {cron: "1 25 * * *", job: x}}
    2:26: schedules.a.cron: hour 25 is not in 0–23
schedules: {a: {cron: '1 25 * * *', job: x}}
    2:26: schedules.a.cron: hour 25 is not in 0–23
schedules: {a: {cron: 1 25 * * *, job: x}}
    2:25: schedules.a.cron: hour 25 is not in 0–23
schedules: {a: {cron: "1 \x325 * * *", job: x}}
    2:23: schedules.a.cron: hour 25 is not in 0–23
schedules: {a: {every: 1m, cron: 1 2 * * *, job: x}}
    2:13: schedules.a: "cron" and "every" cannot be combined: delete one
schedules: {a: {job: x}}
    2:13: schedules.a: this schedule has no time: add the key "cron" (such as "15 2 * * *") or the key "every"
    (such as 10m)
schedules: {a: {every: 1m}}
    2:13: schedules.a: this schedule runs nothing: write "job: billing.send_invoice" or "command: [backup, --all]"
schedules: {a: {every: 1m, job: x, command: [y]}}
    2:13: schedules.a: "job" and "command" cannot be combined: delete one
schedules: {a: {every: 1m, job: x, overlap: no}}
    2:45: schedules.a.overlap: "no" is not one of skip, wait, allow
schedules: {a: {every: 1m, job: x, timeout: 50ms}}
    2:45: schedules.a.timeout: "50ms" is not in 100ms–30d
schedules: {a: {every: 1m, job: x, payload: [1]}}
    2:45: schedules.a.payload: a payload is a mapping: {invoice_id: 42}
nonsense: 1
    2:1: nonsense: unknown key. Allowed here: alerts, around, database, defaults, env, env_file, environment, executors,
    extras, imports, job_types, limits, log, metrics, project, python_path, queues, retention, run, schedules, schema,
    setup, timezone
on: 1
    2:1: on: unknown key. Allowed here: alerts, around, database, defaults, env, env_file, environment, executors,
    extras, imports, job_types, limits, log, metrics, project, python_path, queues, retention, run, schedules, schema,
    setup, timezone
""")


@pytest.mark.parametrize(("line", "said"), BAD_VALUES)
def test_a_bad_value_is_told_with_its_place_and_what_to_write(line: str, said: str) -> None:
    assert problems(DATABASE + line) == [f"cronjobs.yaml:{said}"]


@pytest.mark.parametrize(("line", "said"), BAD_VALUES)
def test_a_bad_value_disables_only_itself(line: str, said: str) -> None:
    good = "schedules: {good: {every: 5m, job: fine}" + (", " if line.startswith("schedules") else "}\n")
    found = read(DATABASE + good + line.removeprefix("schedules: {"))
    assert list(found.schedules) == ["good"]
    if line.startswith(("schedules", "job_types")):
        assert found.disabled_schedules | found.disabled_job_types == {"a b" if "a b" in line else "a"}


def test_names_of_runs_of_exec_are_taken_by_no_entry() -> None:
    found = read(DATABASE + "schedules: {a: {cron: '0 * * * *', job: 'exec:backup'}}\n")
    assert [*found.schedules] == []
    assert 'does not begin with "exec:"' in str(found.problems[0])
    found = read(DATABASE + 'job_types: {"exec:a": {command: [ls]}, b: {command: [ls]}}\n')
    assert [*found.job_types] == ["b"]
    assert 'names that begin with "exec:" are reserved for "cronjobs exec": choose another' in str(found.problems[0])


GOOD_VALUES = [
    ("run: {workers: 64, budget: 1h}", lambda s: s.run.lease, timedelta(hours=1, seconds=5)),
    ("run: {budget: 20s}", lambda s: s.run.lease, timedelta(seconds=60)),
    ("run: {lease: 2s}", lambda s: s.run.lease, timedelta(seconds=2)),
    ("run: {workers: '3'}", lambda s: s.run.workers, 3),
    ("run:", lambda s: s.run.workers, 4),
    ("log: none", lambda s: s.log, None),
    ("log: /var/log/c.log", lambda s: s.log, Path("/var/log/c.log")),
    ("project: 010", lambda s: s.project, "010"),
    ("environment: yes", lambda s: s.environment, "yes"),
    ("env: {A: yes, B: 010, C: 1:30}", lambda s: s.env, (("A", "yes"), ("B", "010"), ("C", "1:30"))),
    ("imports:", lambda s: s.imports, ()),
    ("schedules:", lambda s: s.schedules, {}),
    ("job_types: {a: {retry: {base: 1h, cap: 2h}}}", lambda s: dict(s.job_types["a"].retry.changes)["base"],
     timedelta(hours=1)),
    ("job_types: {a: {timeout: 20m}}", lambda s: s.job_types["a"].timeout, timedelta(minutes=20)),
    ("schedules: {a: {every: 1h, job: x, timeout: 20m}}", lambda s: s.schedules["a"].timeout, timedelta(minutes=20)),
    ("job_types: {a: {isolation: process, max_memory: 512MiB}}",
     lambda s: (s.job_types["a"].isolation, s.job_types["a"].max_memory), ("process", 512 * 2**20)),
    ("job_types: {a: {max_memory: 2GiB}}", lambda s: s.job_types["a"].max_memory, 2 * 2**30),
    ("job_types: {a: {command: [ls], max_memory: 16777216}}", lambda s: s.job_types["a"].max_memory, 16 * 2**20),
    ("job_types: {a: {on_shutdown: drop, on_lost: dead}}",
     lambda s: (s.job_types["a"].on_shutdown, s.job_types["a"].on_lost), ("drop", "dead")),
    ("job_types: {a: {command: [ls], success_exit_codes: [0, 3], retry_exit_codes: [65]}}",
     lambda s: (s.job_types["a"].success_exit_codes, s.job_types["a"].retry_exit_codes), ((0, 3), (65,))),
    ("job_types: {a: {command: [ls], success_exit_codes: [24], retry_exit_codes: [0]}}",
     lambda s: s.job_types["a"].retry_exit_codes, (0,)),
    ("defaults: {retry: {retry_on: [OSError, exit-75], give_up_on: [a.b.C, SIGKILL, TimedOut]}}",
     lambda s: s.retry, RetryChanges((("retry_on", ("OSError", "exit-75")),
                                      ("give_up_on", ("a.b.C", "SIGKILL", "TimedOut"))))),
    ("job_types: {a: {command: [cat]}}", lambda s: s.job_types["a"].stdin, None),
    ("job_types: {a: {command: [cat], stdin: none}}", lambda s: s.job_types["a"].stdin, ""),
    ("job_types: {a: {command: [cat], stdin: 'none'}}", lambda s: s.job_types["a"].stdin, "none"),
    ('job_types: {a: {command: [cat], stdin: "$${a}\\n"}}', lambda s: s.job_types["a"].stdin, "${a}\n"),
    ("job_types: {a: {command: [ls], folder: /srv, leftovers: leave}}",
     lambda s: (s.job_types["a"].run_in, s.job_types["a"].leftovers), (Path("/srv"), "leave")),
    ("job_types: {a: {command: [ls], folder: sub}}", lambda s: s.job_types["a"].run_in == Path.cwd() / "sub", True),
    ("run: {long_jobs: 1000}", lambda s: s.run.long_jobs, 1000),
    ("job_types: {a: }", lambda s: s.job_types["a"].command, None),
    ('schedules: {a: {cron: "*/5 * * * *", command: [ls, -l, 7], timeout: 9s}}', lambda s: s.job_types["a"].command,
     ("ls", "-l", "7")),
    ('schedules: {on: {cron: "@daily", job: x}}', lambda s: s.schedules["on"].cron, "@daily"),
    ("schedules: {a: {every: 1m, job: x, catch_up: none}}", lambda s: s.schedules["a"].catch_up, "none"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "get", "expected"), GOOD_VALUES, ids=[row[0] for row in GOOD_VALUES])
def test_a_value_is_read_as_it_is_meant(line: str, get: Any, expected: object) -> None:
    found = read(DATABASE + line)
    assert found.problems == ()
    assert get(found) == expected


PAYLOAD_VALUES = [
    ("42", 42),
    ("-7", -7),
    ("0x1F", 31),
    ("1.5", 1.5),
    ("1e3", 1000.0),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("text with words", "text with words"),
    ("2024-01-01", "2024-01-01"),
    ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00Z"),
    ('"010"', "010"),
    ("'yes'", "yes"),
    ("!!str 10", "10"),
    ("[1, a, {b: c}]", [1, "a", {"b": "c"}]),
    ("{yes: 1, 2: b}", {"yes": 1, "2": "b"}),
    ("${N}", "12"),
    ("a${N}b", "a12b"),
    ("$${N}", "${N}"),
]


@pytest.mark.parametrize(("written", "value"), PAYLOAD_VALUES)
def test_a_payload_is_json(written: str, value: object) -> None:
    found = read(
        f"{DATABASE}schedules:\n  a:\n    every: 1m\n    job: x\n    payload:\n      v: {written}\n", {"N": "12"}
    )
    assert found.problems == ()
    assert found.schedules["a"].payload == {"v": value}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("yes", 'yes means different things in different YAML versions: write true, or "yes" for the word'),
        ("Off", 'Off means different things in different YAML versions: write false, or "Off" for the word'),
        *[
            (
                text,
                (
                    f'{text} means different things in different YAML versions: write "{text}" for the text, or a '
                    "plain number"
                ),
            )
            for text in ("010", "-010", "1:30", "10:20:30", "1_000", "0o17", "0b11", "1_0.5")
        ],
        (".inf", ".inf is not JSON: write a number, or quote it"),
        (".NaN", ".NaN is not JSON: write a number, or quote it"),
        ("1e999", '"1e999" is too large for a number: write it as text, in quotes'),
        ("9" * 20, f'"{"9" * 20}" is too large for a number: write it as text, in quotes'),
    ],
)
def test_a_payload_value_that_versions_of_yaml_read_differently_is_refused(written: str, message: str) -> None:
    text = f"{DATABASE}schedules:\n  a:\n    every: 1m\n    job: x\n    payload: {{v: {written}}}\n"
    assert problems(text) == [f"cronjobs.yaml:6:18: schedules.a.payload.v: {message}"]


def test_a_payload_is_at_most_256_kib() -> None:
    text = DATABASE + "schedules: {{a: {{every: 1m, job: x, payload: {{v: {}}}}}}}"
    assert problems(text.format("x" * (256 * 1024 - 9))) == []
    assert problems(text.format("x" * (256 * 1024 - 8))) == [
        (
            "cronjobs.yaml:2:45: schedules.a.payload: a payload is at most 262,144 bytes of JSON, and this one has "
            "262,145: store the data elsewhere and pass its key"
        )
    ]


# --- what disables what -----------------------------------------------------------------------------------------------


def test_a_schedule_is_good_although_its_job_type_is_bad() -> None:
    found = read(DATABASE + "job_types: {x: {timeout: 31d}}\nschedules: {a: {every: 1m, job: x}}")
    assert list(found.schedules) == ["a"]
    assert found.disabled_job_types == {"x"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("timezone: Berlin", "did you mean Europe/Berlin?"),
        ("timezoen: Europe/Berlin", 'unknown key, did you mean "timezone"?'),
    ],
)
def test_a_bad_timezone_disables_and_names_the_schedules_that_depend_on_it(line: str, says: str) -> None:
    found = read(
        f'{DATABASE}{line}\nschedules: {{a: {{cron: "0 1 * * *", job: x}}, b: {{every: 1m, job: x}}, '
        'c: {cron: "0 1 * * *", timezone: UTC, job: x}}'
    )
    assert found.schedules.keys() == {"b", "c"}
    assert found.disabled_schedules == {"a"}
    assert says in str(found.problems[0])
    [problem] = found.problems_of("a")
    assert str(problem).startswith("cronjobs.yaml:3:13: schedules.a: disabled, because the file's timezone cannot be")


def test_a_command_does_not_run_without_one_of_its_variables() -> None:
    """It might succeed without doing its work: a backup of nothing, with an empty password."""
    found = read(DATABASE + 'job_types: {dump: {command: [dump], env: {A: x, PGPASSWORD: "${NOBODY_SET_THIS}"}}}')
    assert found.disabled_job_types == {"dump"}
    [problem] = found.problems
    assert "job_types.dump.env.PGPASSWORD: ${NOBODY_SET_THIS} is not set" in str(problem)


def test_a_bad_entry_with_a_new_name_also_disables_the_schedule_under_its_old_name() -> None:
    found = read(DATABASE + "schedules: {new: {every: 1m, job: x, renamed_from: old, grace: 1x}}")
    assert found.disabled_schedules == {"old", "new"}
    assert found.problems_of("old") == found.problems_of("new") == list(found.problems)
    both = "schedules: {old: {every: 1m, job: x}, new: {every: 1m, job: x, renamed_from: old, grace: 1x}}"
    assert read(DATABASE + both).disabled_schedules == {"new"}


def test_an_inline_command_that_is_bad_disables_schedule_and_command() -> None:
    found = read(DATABASE + "schedules: {a: {every: 1m, command: [ls], priority: 11}}")
    assert found.disabled_schedules == found.disabled_job_types == {"a"}


def test_the_problems_of_a_schedule_are_not_those_of_one_whose_name_begins_alike() -> None:
    bad = "schedules:\n  night: {every: 1x, job: a}\n  nightly: {every: 1y, job: a}\n"
    assert [problem.path for problem in read(DATABASE + bad).problems_of("night")] == ["schedules.night.every"]


def test_an_inline_command_may_not_take_the_name_of_a_job_type() -> None:
    text = DATABASE + "job_types: {a: {command: [ls]}}\nschedules: {a: {every: 1m, command: [rm]}}"
    assert problems(text) == [
        (
            "cronjobs.yaml:3:13: schedules.a: job_types has an entry of the same name: rename the schedule, "
            'or write "job", not "command"'
        )
    ]
    assert read(text).job_types["a"].command == ("ls",)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("run: {workers: 2}\nrun: {workers: 3}", ["2:1: run: this key is already on line 1: delete one of the two"]),
        (
            "schedules:\n  a: {every: 1m, job: x}\n  a: {every: 2m, job: x}",
            ["3:3: schedules.a: this key is already on line 2: delete one of the two"],
        ),
        (
            "schedules:\n  a: {every: 1m, job: x, every: 2m}",
            ["2:26: schedules.a.every: this key is already on line 2: delete one of the two"],
        ),
        (
            "schedules:\n  a: {every: 1m, job: x, payload: {b: {c: 1, c: 2}}}",
            ["2:46: schedules.a.payload.b.c: this key is already on line 2: delete one of the two"],
        ),
        ("env: {A: 1, A: 2}", ["1:13: env.A: this key is already on line 1: delete one of the two"]),
    ],
)
def test_of_a_key_that_is_there_twice_neither_counts(text: str, messages: list[str]) -> None:
    found = read(f"{text}\n{DATABASE}")
    assert [str(problem) for problem in found.problems] == [f"cronjobs.yaml:{message}" for message in messages]
    assert (found.run.workers, found.schedules, found.env) == (4, {}, ())
    assert found.disabled_schedules == ({"a"} if text.startswith("schedules") else set())


def test_what_disables_the_file_is_a_key_of_the_file() -> None:
    assert FILE.keys() >= FATAL


@pytest.mark.parametrize(
    ("line", "said"),
    cases("""
project: [a]
    2:10: project: write one value, not a list
project: ""
    2:10: project: "" is not a name of 1–100 characters without leading or trailing spaces
environment:
    2:13: environment: there is no value here: write one, or delete the key
schema: a;b
    2:9: schema: "a;b" is not a PostgreSQL schema: up to 63 letters, digits and _, not beginning with pg_
schedules: [a]
    2:12: schedules: write it as a mapping: each name, with its settings below it
job_types: a
    2:12: job_types: write it as a mapping: each name, with its settings below it
database: sqlite:///y.db
    2:1: database: this key is already on line 1: delete one of the two
"""),
)
def test_a_mistake_that_could_do_harm_ends_it(line: str, said: str) -> None:
    assert refusal(DATABASE + line) == [f"cronjobs.yaml:{said}"]


@pytest.mark.parametrize("typo", ["shedules: {}", "projct: shop", "enviroment: production", "job_type: {}"])
def test_a_misspelt_key_whose_absence_could_do_harm_ends_it(typo: str) -> None:
    (message,) = refusal(DATABASE + typo)
    assert f'{typo.partition(":")[0]}: unknown key, did you mean "' in message


def test_a_section_of_an_extra_that_is_not_installed_is_named_and_the_rest_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = ReaderOfExtra("cronjobs.contrib.printing.keys", "printing")
    monkeypatch.setitem(FILE, "printing", ConfigKey(section, "{}", "Printers."))
    found = read(DATABASE + "printing: {paper: a4}\nschedules: {good: {every: 5m, job: fine}}\n")
    assert [str(each) for each in found.problems] == [
        "cronjobs.yaml:2:11: printing: cronjobs.contrib.printing is not installed, so this entry does nothing"
    ]
    assert list(found.schedules) == ["good"]
