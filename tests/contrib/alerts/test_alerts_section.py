"""``alerts:`` and ``ping:``: what is accepted, what is refused and how, and that a bad entry disables only itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.testing.configured import settings_of

SECRET = "canary-4711-secret"


def read(folder: Path, text: str) -> Settings:
    (folder / "cronjobs.yaml").write_text("database: sqlite:///x.db\n" + text)
    return load(folder / "cronjobs.yaml", environ={"SECRET": SECRET})


BAD = [
    ("alerts: {channels: {a: {}}}", "alerts.channels.a: a channel needs exactly one of the keys"),
    ("alerts: {channels: {a: {command: [x], webhook: {url: 'http://x'}}}}", "a channel needs exactly one of the keys"),
    ("alerts: {channels: {a: {webhook: {url: 'ftp://x'}}}}", "this is not a web address"),
    ("alerts: {channels: {a: {webhook: {url: '${SECRET}'}}}}", "this is not a web address"),
    ("alerts: {channels: {a: {webhook: {url: 'http://x', format: xml}}}}", '"xml" is not one of json, slack, teams'),
    ("alerts: {channels: {a: {mail: {host: h, from: a, to: [b@c.d]}}}}", '"a" is not an email address'),
    ("alerts: {channels: {a: {mail: {host: h, from: a@b.c, to: []}}}}", "nobody would get the mail"),
    ("alerts: {channels: {a: {mail: {host: h, from: a@b.c, to: [b@c.d], user: u}}}}", "user and password go together"),
    (
        "alerts: {channels: {a: {mail: {host: h, tls: none, from: a@b.c, to: [b@c.d], user: u, password: p}}}}",
        "the password would cross the network in clear text",
    ),
    ("alerts: {channels: [a]}", "write it as a mapping: each name, with its settings below it"),
    ("alerts: {severity: mild}", '"mild" is not one of critical, warning, notice'),
    ("alerts: {thresholds: {t: {of: dead}}}", "these keys must be given here: more_than, within"),
    ("alerts: {thresholds: {t: {of: late, more_than: 1, within: 1h}}}", '"late" is not one of dead, failed'),
    ("alerts: {ignore: [dea]}", '"dea" is not a kind of finding, did you mean "dead"?'),
    ("extras: [acme]\nalerts: {ignore: [dea]}", '"dea" is not a kind of finding, did you mean "dead"?'),
    ("alerts: {ignore: [qqqq]}", '"qqqq" is not a kind of finding: there are absent, alert, behind, '),
    ("alerts: {chanels: {}}", 'did you mean "channels"?'),
    ("run: {ping: nowhere}", "this is not a web address"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_what_cannot_be_taken_is_said_and_disables_only_itself(tmp_path: Path, text: str, said: str) -> None:
    good = "schedules:\n  s: {cron: '0 2 * * *', command: [x]}\n"
    settings = read(tmp_path, f"{text}\n{good}")
    assert [problem for problem in settings.problems if said in str(problem)], settings.problems
    assert not [problem for problem in settings.problems if SECRET in str(problem)]
    assert "s" in settings.schedules


def test_the_kinds_of_findings_of_an_own_extra_are_taken(tmp_path: Path) -> None:
    only = "findings: [printer, 'pump:hall']"
    settings = read(tmp_path, f"extras: [acme]\nalerts: {{channels: {{a: {{command: [x], {only}}}}}}}\n")
    assert settings.problems == ()
    assert settings.alerts is not None
    assert settings.alerts.channels["a"].only.findings == ("printer", "pump:hall")


def test_one_bad_channel_leaves_the_others(tmp_path: Path) -> None:
    settings = read(tmp_path, "alerts: {channels: {a: {webhook: {}}, b: {command: [page]}}}\n")
    assert settings.alerts is not None
    assert list(settings.alerts.channels) == ["b"]
    assert len(settings.problems) == 1


def test_a_bad_ping_does_not_stop_its_schedule(tmp_path: Path) -> None:
    settings = read(tmp_path, "schedules:\n  s: {cron: '0 2 * * *', command: [x], ping: nowhere}\n")
    assert settings.schedules["s"].ping is None
    assert len(settings.problems) == 1


def test_addresses_and_passwords_are_masked_also_if_they_are_written_out(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        "run: {ping: 'https://hc.example.com/12345'}\nalerts:\n  channels:\n"
        "    a: {webhook: {url: 'https://chat.example.com/T0'}}\n"
        "    b: {mail: {host: h, from: a@b.c, to: d@e.f, user: u, password: 'horse battery'}}\n",
    )
    assert {"https://hc.example.com/12345", "https://chat.example.com/T0", "horse battery"} <= settings.secrets
    assert settings.problems == ()


def test_without_the_section_there_are_no_alerts(tmp_path: Path) -> None:
    assert read(tmp_path, "").alerts is None
    assert read(tmp_path, "alerts:\n").alerts is not None, "findings are kept"


def test_a_users_test_alerts_and_pings_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMTP_PASSWORD", raising=False)
    (tmp_path / "cronjobs.yaml").write_text(
        "database: sqlite:///x.db\nrun: {ping: 'https://hc.example.com/1'}\n"
        "alerts: {channels: {a: {command: [page]}, b: {webhook: {url: '${SMTP_PASSWORD}'}}}}\n"
        "schedules: {s: {cron: '0 2 * * *', command: [x], ping: 'https://hc.example.com/2'}}\n"
    )
    settings = settings_of(tmp_path / "cronjobs.yaml")
    assert (settings.alerts, settings.run.ping, settings.schedules["s"].ping) == (None, None, None)
