"""The cronjobs.yaml and jobs.py that ``cronjobs init`` writes. They run unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from cronjobs.engine.config.reference import json_schema
from cronjobs.engine.config.writing import written

# The JSON Schema is a file beside cronjobs.yaml, and cronjobs.yaml names it by a relative path. So the schema matches
# this version, editors need no network to read it, and they still find it when the folder is copied.
SCHEMA_FILE: Final = "cronjobs.schema.json"

OWN_FILE: Final = "cronjobs.db"  # the SQLite file of a project without another database
COMMENT_AT: Final = 37  # comments after a value begin in this column

# A line that begins with "#" without a space is an example. Without the "#" it is valid YAML, which a test checks.
_YAML: Final = """\
# yaml-language-server: $schema=@schema@
# cronjobs.yaml: what runs, and when. Try it:  cronjobs check  ·  cronjobs run-due  ·  cronjobs status
# Let cron do it every minute:  cronjobs crontab install
# Quote cron expressions, and values with ": " or " #" in them. Durations: 55s, 10m, 24h, 7d.

@project@# stored in the database, so that no other project's ticks run these jobs
#environment: production             # stored in the database, too, so that a copy on a test machine runs nothing
database: sqlite:///@file@      # beside this file; or postgresql://user@host/name
#env_file: .env                      # a file of variables for cron's ticks, e.g. for database: ${DATABASE_URL}
imports: [jobs]                      # the modules with your @job functions; this folder is on the import path
#python_path: [.]                    # more folders to import from
#setup: django.setup                 # called before the imports
#env: {DJANGO_SETTINGS_MODULE: shop.settings}
timezone: @timezone@
log: cronjobs.log                    # one line per event; "log: none" writes no file

#metrics: {textfile: /var/lib/node_exporter/cronjobs.prom}   # for Prometheus; or: cronjobs metrics
#alerts: {channels: {ops: {webhook: {url: "https://chat.example.com/hook", format: slack}}}}   # docs/how-to/alerts.md
#around: [tracing:span]              # context managers around every attempt

#run:
#  workers: 4                        # how many jobs run at once; 1 runs them one after another, in order
#  budget: 55s                       # no tick takes longer, so each tick ends before the next minute
#defaults:
#  retry: {max_attempts: 10, base: 1m, factor: 2, cap: 30m}
#retention: {succeeded: 14d, dead: 90d}
#limits: {"smtp:": 4}                # at most 4 jobs at once whose concurrency_key begins with "smtp:", on all hosts
#queues: {mail: {max_waiting: 10000, on_full: error}}   # when the queue is full: error, drop or wait

schedules:
  hello:
    every: 5m
    job: hello                       # @job("hello") in @handlers@
    payload: {name: world}           # the handler's keyword arguments
#  nightly-report:
#    cron: "15 2 * * *"              # minute hour day month weekday
#    timezone: America/New_York      # the time zone of 02:15; default: the timezone above
#    job: reports.nightly
#    timeout: 30s
#    max_attempts: 5
#    catch_up: latest                # after an outage: latest, none or all
#    catch_up_within: 24h
#    overlap: skip                   # if the last job still runs: skip, wait or allow
#  tidy-up:
#    cron: "@daily"
#    command: [find, /tmp/my-app, -mtime, "+7", -delete]   # an argument list, no shell

#job_types:
#  reports.nightly: {timeout: 40s, retry: {max_attempts: 3}}   # overrides what @job says
#  backup:                           # a command that can be enqueued: cronjobs enqueue backup
#    command: [pg_dump, --file, /backup/app.sql, app]
#    timeout: 50s
"""

_HANDLERS: Final = '''\
"""The jobs of this project. Run one now:  cronjobs run hello  ·  in 5 minutes:  cronjobs enqueue hello --in 5m"""

from cronjobs import Context, job


@job("hello", timeout="10s")
def hello(ctx: Context, name: str = "world") -> dict[str, str]:
    """A payload's keys arrive as keyword arguments. What is printed and what is returned are kept with the job."""
    print(f"Hello, {name}! This is job {ctx.job_id}, attempt {ctx.attempt}.")
    return {"greeted": name}
'''


def starter_yaml(*, timezone: str, project: str, changed: Mapping[str, str], handlers: str) -> str:
    """Return the text of a first cronjobs.yaml.

    *changed* maps keys to the text after the colon, which replaces the starter's value or example. *handlers* is the
    file with the first handler.
    """
    text = (
        _YAML.replace("@schema@", SCHEMA_FILE)
        .replace("@project@", f"project: {written(project)} ".ljust(COMMENT_AT))
        .replace("@timezone@", written(timezone))
        .replace("@handlers@", handlers)
        .replace("@file@", OWN_FILE)
    )
    for key, value in changed.items():
        text = _changed(text, key, value)
    return text


def _changed(text: str, key: str, value: str) -> str:
    changed, count = re.subn(rf"^#?{key}: .*$", lambda _: f"{key}: {value}", text, count=1, flags=re.MULTILINE)
    assert count == 1, key
    return changed


def starter_schema() -> str:
    """Return the JSON Schema for the file named in the first line of ``starter_yaml``."""
    return json.dumps(json_schema(), indent=2) + "\n"


def starter_handlers() -> str:
    """Return the text of a first jobs.py, which ``starter_yaml`` imports."""
    return _HANDLERS
