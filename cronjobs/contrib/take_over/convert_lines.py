"""Convert each crontab line to an entry of cronjobs.yaml with the same meaning. Pure."""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from cronjobs.contrib.take_over.fields_of_old_cron import BadField, CronFields, read_fields
from cronjobs.contrib.take_over.minute_loop import TimedLine
from cronjobs.desk.crontab.host import environment_of
from cronjobs.desk.crontab.lines import Cron, CrontabEntry, NoEntry, exec_name, job_lines, read, starts_ticks
from cronjobs.desk.crontab.naming import name_of, unused
from cronjobs.engine.config.writing import can_hold
from cronjobs.engine.crontime import grammar
from cronjobs.engine.crontime.zone_names import zone_exists
from cronjobs.errors import CronError


@dataclass(frozen=True)
class ImportedLine:
    """A crontab line and its entry in the YAML.

    ``fields`` holds the fields as cron parses them. ``cron`` is our expression for the same times, in ``timezone``.
    ``inherited`` names variables that come from cron's own environment (PAM).
    """

    line: CrontabEntry
    fields: CronFields
    name: str
    cron: str
    timezone: str
    command: tuple[str, ...]
    folder: str
    env: tuple[tuple[str, str], ...]
    inherited: tuple[str, ...] = ()
    own_timezone: str | None = None  # CRON_TZ, which only cronie supports

    @property
    def cron_line(self) -> TimedLine:
        return TimedLine(self.fields, self.own_timezone)


@dataclass(frozen=True)
class KeptLine:
    """A line that stays in the crontab. If ``broken``, cron itself cannot read the line."""

    number: int
    text: str
    why: str
    broken: bool = False


@dataclass(frozen=True)
class ImportedCrontab:
    taken: tuple[ImportedLine, ...]
    left: tuple[KeptLine, ...]
    notes: tuple[str, ...]
    mail_to: tuple[str, ...]  # the addresses in MAILTO above the imported lines, in the form that alerts: accepts
    mail_from: str | None = None


@dataclass(frozen=True)
class Importer:
    """Converts a crontab. ``timezone`` is the host's, and ``from_pam`` names the variables that PAM sets."""

    owner: pwd.struct_passwd
    timezone: str
    cron: Cron = "debian"
    from_pam: Collection[str] = ()

    def convert(self, crontab: str) -> ImportedCrontab:
        """Convert the lines of *crontab* that can be converted, and say why the others stay there."""
        taken: list[ImportedLine] = []
        left: list[KeptLine] = []
        names: set[str] = set()
        for entry in read(crontab, self.cron):
            found = self._line(entry, names)
            if isinstance(found, ImportedLine):
                taken.append(found)
                names.add(found.name)
            else:
                left.append(found)
        mail_to, strange = _addresses(taken)
        senders = [dict(each.line.settings).get("MAILFROM", "") for each in taken]
        return ImportedCrontab(
            tuple(taken),
            tuple(left),
            (*self._notes(taken), *strange),
            mail_to,
            next((sender for sender in senders if _ADDRESS.fullmatch(sender)), None),
        )

    def _line(self, entry: CrontabEntry | NoEntry, names: Collection[str]) -> ImportedLine | KeptLine:
        def left(why: str, *, broken: bool = False) -> KeptLine:
            return KeptLine(entry.number, entry.text, why, broken)

        if isinstance(entry, NoEntry):
            return left(f"cron cannot read it: {entry.why}", broken=True)
        if entry.when == "@reboot":
            return left("only the cron daemon notices that the machine starts (@reboot)")
        if starts_ticks(entry):
            return left("the line starts cronjobs' own tick")
        if exec_name(entry) is not None:
            return left('the line is wrapped in "cronjobs exec": run cronjobs crontab unwrap, then import the line')
        settings = dict(entry.settings)
        env = environment_of(settings, self.owner, self.cron)
        if not all(map(can_hold, (entry.command, entry.stdin, *env.values()))):
            return left("the line, or a setting above it, is not valid UTF-8, and cronjobs.yaml must be UTF-8")
        for name in ("SHELL", "HOME"):
            if not env[name].startswith("/"):
                return left(f'{name}="{env[name]}" is not an absolute path')
        zone = settings.get("CRON_TZ") if self.cron == "cronie" else None
        if zone and not zone_exists(zone):
            return left(f'CRON_TZ="{zone}" is not a time zone such as Europe/Berlin')
        try:
            fields = read_fields(entry.when, self.cron)
        except BadField as bad:
            return left(f"cron cannot read it: {bad}", broken="at random" not in str(bad))
        try:
            cron = expression(entry.when, fields)
        except CronError as error:
            return left(f"cronjobs has no expression for it: {error}")
        return ImportedLine(
            line=entry,
            fields=fields,
            name=unused(name_of(entry.command), names),
            cron=cron,
            timezone=zone or self.timezone,
            command=(env["SHELL"], "-c", entry.command),
            folder=env["HOME"],
            env=tuple((name, value) for name, value in env.items() if _VARIABLE.fullmatch(name)),
            inherited=tuple(sorted(name for name in self.from_pam if name not in env)),
            own_timezone=zone,
        )

    def _notes(self, taken: list[ImportedLine]) -> list[str]:
        notes = []
        set_by: dict[str, list[int]] = {}
        for each in taken:
            for name, _ in each.line.settings:
                set_by.setdefault(name, []).append(each.line.number)
        for name, numbers in set_by.items():
            if not _VARIABLE.fullmatch(name):
                notes.append(
                    f'the setting "{name}" above {_lines(numbers)} is not taken over: no shell can use such a name'
                )
        if self.cron == "debian" and (numbers := set_by.get("CRON_TZ", [])):
            notes.append(
                f"Debian's cron uses a single time zone, and takes CRON_TZ above {_lines(numbers)} for an ordinary "
                "variable. If cronie runs this crontab, import it with --cron cronie"
            )
        if self.cron == "cronie" and (numbers := set_by.get("RANDOM_DELAY", [])):
            notes.append(
                f"RANDOM_DELAY above {_lines(numbers)} is not taken over. "
                'The key "spread: 10m" of a schedule has the same effect'
            )
        return notes


def names_users(crontab: str, is_user: Callable[[str], bool]) -> bool:
    """Whether each line of *crontab* names a user before the command, as in /etc/crontab and /etc/cron.d."""
    words = [line.command.split(None, 1) for line in job_lines(crontab)]
    return bool(words) and all(len(each) > 1 and is_user(each[0]) for each in words)


def _lines(numbers: Collection[int]) -> str:
    some = ", ".join(str(number) for number in sorted(set(numbers))[:10])
    more = len(set(numbers)) - 10
    return f"line{'s' if len(set(numbers)) > 1 else ''} {some}{f' and {more} more' if more > 0 else ''}"


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# --- MAILTO -----------------------------------------------------------------------------------------------------------

_ADDRESS: Final = re.compile(r"[!-~]{1,64}@[!-~]{1,255}")


def _addresses(taken: list[ImportedLine]) -> tuple[tuple[str, ...], list[str]]:
    """Return the addresses to which cron mails output ("ann" as ann@localhost), and messages about invalid ones."""
    found: dict[str, None] = {}
    notes = []
    for mail_to in dict.fromkeys(dict(each.line.settings).get("MAILTO", "") for each in taken):
        for word in re.split(r"[, \t]+", mail_to):
            address = f"{word}@localhost" if re.fullmatch(r"[A-Za-z0-9._-]+", word) else word
            if _ADDRESS.fullmatch(address) and not set('<>;"$') & set(address) and address.count("@") == 1:
                found[address] = None
            elif word:
                notes.append(f'MAILTO contains "{word}", which is not a mail address, so it is left out of "alerts"')
    return tuple(found), notes


# --- the expression ---------------------------------------------------------------------------------------------------


def expression(when: str, fields: CronFields) -> str:
    """Return an expression in our grammar for the times that *when* has under cron: *when* itself, if possible.

    Rewrite likely mistakes such as "*/90" or "5-3", which cron accepts, but our grammar refuses. Raises CronError if
    *when* cannot be rewritten, or if the line never runs.
    """
    try:
        if _selects(grammar.parse(when), fields):
            return when
    except CronError:
        pass
    week = frozenset(day % 7 for day in fields.weekdays)
    words = [
        _word(fields.minutes, 0, 59, fields.minute_star),
        _word(fields.hours, 0, 23, fields.hour_star),
        _word(fields.days, 1, 31, fields.day_star),
        _word(fields.months, 1, 12, star=fields.months == frozenset(range(1, 13))),
        _word(week, 0, 6, fields.weekday_star),
    ]
    written = " ".join(words)
    if not _selects(grammar.parse(written), fields):
        raise CronError(f'"{when}" cannot be written in a way that cronjobs accepts')
    return written


def _selects(ours: grammar.CronExpression, theirs: CronFields) -> bool:
    return (
        (ours.minutes, ours.hours, ours.days, ours.months) == (theirs.minutes, theirs.hours, theirs.days, theirs.months)
        and ours.weekdays == frozenset(day % 7 for day in theirs.weekdays)
        and ours.fixed_time is not theirs.wild
        and (ours.both_days_must_match is (theirs.day_star or theirs.weekday_star) or _all_days(theirs))
    )


def _all_days(fields: CronFields) -> bool:
    """Whether both day fields select every day, so that "and" and "or" between them mean the same."""
    return len(fields.days) == 31 and len(fields.weekdays) == 8


def _word(values: frozenset[int], low: int, high: int, star: bool) -> str:
    if not values:
        raise CronError("one of the line's ranges runs backwards, so the line never runs")
    if star:
        for step in range(1, high - low + 2):
            if values == frozenset(range(low, high + 1, step)):
                return "*" if step == 1 else f"*/{step}"
        raise CronError('a field lists "*" with other values')
    if values == frozenset(range(low, high + 1)):
        return f"{low}-{high}"
    return ",".join(str(value) for value in sorted(values))
