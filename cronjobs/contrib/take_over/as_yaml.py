"""Write the cronjobs.yaml for imported crontab lines. Pure."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from cronjobs.contrib.take_over.convert_lines import ImportedCrontab, ImportedLine
from cronjobs.desk.crontab.lines import as_shown
from cronjobs.engine.config.writing import written
from cronjobs.masking import is_secret_name, url_passwords
from cronjobs.text import one_line, visible

_HEAD = """\
# The lines of @of@, with the meaning they have under cron. Written by "cronjobs crontab import".
# Next: "cronjobs crontab compare" (checks when lines are due), then "cronjobs crontab swap" (cronjobs runs them).
# You may change every entry. The comments below "defaults" say what cronjobs can do that cron cannot.

database: sqlite:///cronjobs.db   # beside this file; or postgresql://user@host/name
timezone: @timezone@   # the host's time zone, as under cron
log: cronjobs.log
run: {long_jobs: @count@}   # at most this many runs at once, each in its own process; cron has no limit
"""
_MAIL = """
# MAILTO: cron mailed whatever a line printed. cronjobs keeps the output (cronjobs jobs show ID) and mails failures.
alerts:
  channels:
    mailto: {mail: {host: localhost, tls: none, from: @from@, to: [@to@]}}
"""
LONGEST_RUN = "24h"
# A line whose runs take longer than its interval has several runs at once. With a count of one run per line, such a
# line would delay the others.
RUNS_PER_LINE: Final = 10
MOST_LONG_JOBS = 1000  # the highest number that config.load accepts for run.long_jobs


# Maps (name, value) in the crontab to the variable of the env file that holds the value.
Secrets = Mapping[tuple[str, str], str]
NONE: Final[Secrets] = MappingProxyType({})
PREFIX: Final = "CRON_"


def secrets_of(found: ImportedCrontab) -> Secrets:
    """Collect the secrets in the lines' environments. A name that has several values gets several variables.

    No variable has a name that the crontab sets. After ``swap``, the crontab still sets that name to the old value
    above the tick's line. The environment takes precedence, so a change in the env file would have no effect.
    """
    secrets: dict[tuple[str, str], str] = {}
    pairs = dict.fromkeys(pair for each in found.taken for pair in each.env)
    taken = {name for name, _ in pairs}
    for name, value in pairs:
        if value and (is_secret_name(name) or url_passwords(value)):
            numbered = (f"{PREFIX}{name}_{count}" for count in itertools.count(2))
            variable = next(each for each in itertools.chain([f"{PREFIX}{name}"], numbered) if each not in taken)
            taken.add(variable)
            secrets[name, value] = variable
    return secrets


def as_env_file(secrets: Secrets) -> str:
    lines = [f"{variable}={_quoted(value)}\n" for (_, value), variable in secrets.items()]
    head = (
        "# Secrets from the crontab's lines. The YAML file beside this file refers to them as ${NAME}.\n"
        f"# To change a secret, change it here. {PREFIX}NAME holds the crontab's NAME; ticks do not read NAME.\n"
    )
    return "".join([head, *lines])


def _quoted(value: str) -> str:
    """Quote *value* for the env file, so that ``read_env_file`` reads it back unchanged."""
    if "'" not in value:
        return f"'{value}'"
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def as_yaml(
    found: ImportedCrontab, *, of: str, timezone: str, sender: str, env_file: str | None = None, secrets: Secrets = NONE
) -> str:
    """Return the YAML made from a crontab. *of* is the crontab's name.

    *sender* is the From address of alerts if the crontab sets no MAILFROM. The YAML has the *secrets* only as
    ``${NAME}``. *env_file* names the file with their values, or is None.
    """
    count = max(1, min(RUNS_PER_LINE * len(found.taken), MOST_LONG_JOBS))
    parts = [_filled(_HEAD, of=one_line(of, 100), timezone=written(timezone), count=str(count))]
    if env_file is not None and secrets:
        parts.append(f"env_file: {written(env_file)}   # the secrets of the lines\n")
    if found.left:
        parts.append("\n# These lines stay in the crontab:\n")
        parts += [f"#   line {each.number}, {visible(each.why)}: {as_shown(each.text, 150)}\n" for each in found.left]
    if found.mail_to:
        to = ", ".join(written(address, plain=False) for address in found.mail_to)
        parts.append(_filled(_MAIL, **{"from": written(found.mail_from or sender, plain=False), "to": to}))
    if not found.taken:
        return "".join([*parts, "\njob_types: {}\n", "\nschedules: {}\n"])
    keys = {each.name: _keys(each, secrets) for each in found.taken}
    common = _common(keys.values())
    apart = {name: {key: its[key] for key in its if its[key] != common[key]} for name, its in keys.items()}
    parts += ["\ndefaults:\n  commands:\n", *(f"    {_commented(key, value)}\n" for key, value in common.items())]
    parts += ["  schedules:\n", *(f"    {_commented(key, value)}\n" for key, value in _OF_ALL_SCHEDULES.items())]
    if any(apart.values()):
        parts.append("\njob_types:   # lines whose settings differ from the defaults\n")
    for each in found.taken:
        if differing := apart[each.name]:
            parts += [f"  {line}\n" for line in _job_type(each, differing)]
    parts.append("\nschedules:\n")
    for each in found.taken:
        parts += [f"  {line}\n" for line in _schedule(each, timezone, inline=not apart[each.name])]
    return "".join(parts)


_COMMENTS: Final = {
    "inherit_env": "cron's commands get no other variables",
    "leftovers": '"leftovers: end" kills the processes that a run left in the background',
    "timeout": "cron has no limit",
    "retry": '"retry: {max_attempts: 3}" retries a failed run, after one minute, then after two',
    "on_lost": '"on_lost: retry" runs a line again if its host dies during the run',
    "catch_up": '"catch_up: latest" runs a line once if it was missed while the host was down',
    "overlap": '"overlap: skip" skips a run while the previous one is still running',
}
_OF_ALL_SCHEDULES: Final = {"catch_up": "none", "overlap": "allow"}


def _commented(key: str, value: str) -> str:
    return f"{key}: {value}" + (f"   # {_COMMENTS[key]}" if key in _COMMENTS else "")


def _filled(text: str, **values: str) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _keys(taken: ImportedLine, secrets: Secrets) -> dict[str, str]:
    """Return the settings of the line's command, as YAML text by key."""
    return {
        "stdin": written(taken.line.stdin, plain=False) if taken.line.stdin else "none",
        "folder": written(taken.folder),
        "env": _mapping(taken.env, secrets),
        "inherit_env": f"[{', '.join(written(name) for name in taken.inherited)}]",
        "leftovers": "leave",
        "timeout": LONGEST_RUN,
        "retry": "{max_attempts: 1}",
        "on_lost": "dead",
    }


def _common(lines: Collection[dict[str, str]]) -> dict[str, str]:
    """Return the most common value of each key, for ``defaults:``."""
    return {key: Counter(each[key] for each in lines).most_common(1)[0][0] for key in next(iter(lines))}


def _job_type(taken: ImportedLine, keys: Mapping[str, str]) -> Iterator[str]:
    yield f"{written(taken.name)}:   # line {taken.line.number}"
    yield f"  command: {_command(taken)}"
    for key, value in keys.items():
        yield f"  {key}: {value}"


def _schedule(taken: ImportedLine, timezone: str, *, inline: bool) -> Iterator[str]:
    for comment in taken.line.comments:
        yield as_shown(comment, 300)
    yield f"{written(taken.name)}:   # line {taken.line.number}"
    yield f'  cron: "{taken.cron}"'
    if taken.timezone != timezone:
        yield f"  timezone: {written(taken.timezone)}   # CRON_TZ"
    yield f"  command: {_command(taken)}" if inline else f"  job: {written(taken.name)}"


def _command(taken: ImportedLine) -> str:
    return f"[{', '.join(written(word) for word in taken.command)}]"


def _mapping(pairs: Iterable[tuple[str, str]], secrets: Secrets) -> str:
    values = ((pair[0], f'"${{{secrets[pair]}}}"' if pair in secrets else written(pair[1])) for pair in pairs)
    return "{" + ", ".join(f"{written(name)}: {value}" for name, value in values) + "}"
