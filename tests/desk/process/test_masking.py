"""Which values are secrets. No stored or shown text contains one, except payloads, which stay unchanged."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest
from support.project import Project

from cronjobs import events
from cronjobs.desk.cli import output as show
from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.command.printing import complain, echo, echo_json, json_text
from cronjobs.engine.config.load import load
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.execution.handler import masked
from cronjobs.engine.tick.log import Log
from cronjobs.masking import (
    as_meta,
    hidden_json,
    hide_in,
    is_secret_name,
    keys_holding,
    keys_of_meta,
    mask,
    named_secrets,
    remember,
    url_passwords,
    values_under,
)
from cronjobs.model import Failed
from cronjobs.text import cap, one_line


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    remember(())


@pytest.mark.parametrize(
    ("url", "passwords"),
    [
        ("postgresql://u:geheim@h/db", {"geheim"}),
        ("postgresql+psycopg://u:ge%40heim@h/db", {"ge%40heim", "ge@heim"}),
        ("postgresql://u:p@ss:w/rd@h/db", {"p@ss:w/rd"}),
        ("postgresql://h/db?password=geheim&sslpassword=x123", {"geheim", "x123"}),
        ("postgresql://u@h/db", set()),
        ("postgresql://u:abc@h/db", set()),  # too short to look for
        ("sqlite:////a:b@c.db", set()),
        ("not a url", set()),
    ],
)
def test_a_password_in_a_url_is_found(url: str, passwords: set[str]) -> None:
    assert url_passwords(url) == passwords


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql://shop:shop@h/live", set()),
        ("postgresql://app:shop@h:5432/shop?sslmode=require", set()),
        ("postgresql://shop:shop1@h/shop", {"shop1"}),
        ("postgresql://shop:shops@h/x postgresql://shops:geheim@h/shop", {"shops", "geheim"}),
        ("https://shop:shop@h/", set()),
    ],
)
def test_a_password_that_is_the_user_or_the_database_is_masked_in_its_url_alone(url: str, secrets: set[str]) -> None:
    """To mask that name everywhere would hide job types and paths."""
    found = named_secrets({"DATABASE_URL": url})
    assert found == secrets
    assert "shop.mail_order in /srv/shop" in mask(f"{url} shop.mail_order in /srv/shop", found)
    assert ":shop@" not in mask(url, found)


def test_of_an_environment_what_is_named_like_a_secret_is_one() -> None:
    environment = {
        "API_KEY": "key-number-1",
        "smtp_password": "password-1",
        "STRIPE_SECRET": "sk-live-1234",
        "PGPASSWORD": "pg-password",
        "MODE": "production",
        "PWD": "/srv/app/shop",
        "OLDPWD": "/srv/app/shop",
        "KEYBOARD_LAYOUT": "english-us",
        "AUTHOR": "ada lovelace",
        "PIN_TOKEN": "short",
        "CACHE": "redis://:redis-pw@h/0",
    }
    assert named_secrets(environment) == {"key-number-1", "password-1", "sk-live-1234", "pg-password", "redis-pw"}


def test_masking_takes_the_longest_first() -> None:
    assert mask("abcdef abcd", {"abcd", "abcdef", ""}) == "*** ***"


def test_a_secret_is_found_however_it_is_written_down() -> None:
    secret = 'line one of a key\n"quoted" line two\x1b'
    for text in (secret, json.dumps(secret), one_line(secret, 500), "…" + secret.splitlines()[0]):
        assert "line one" not in mask(text, {secret})


# Characters of which each encoding of a secret changes some.
ODD = "qzv\"w'\\jx%+/=é kh-7391"
BEFORE, AFTER = ("", "u", "u:", "ab:"), ("", "x", "xy")


def _in_base64(before: str, after: str, secret: str) -> str:
    return b64encode(f"{before}{secret}{after}".encode()).decode()


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda secret: quote(secret, safe=""),
    "percent, a path": quote,
    "percent, lower case": lambda secret: quote(secret, safe="").lower(),
    "plus": quote_plus,
    "form": lambda secret: urlencode({"v": secret}),
    "repr": repr,
    "repr with quotes around": lambda secret: repr(secret + "'"),
    "repr of bytes": lambda secret: repr(secret.encode()),
    "ascii": ascii,
    "json": json.dumps,
    "json in UTF-8": lambda secret: json.dumps(secret, ensure_ascii=False),
    **{f"base64 {before!r} {after!r}": partial(_in_base64, before, after) for before in BEFORE for after in AFTER},
    "base64 of URLs": lambda secret: urlsafe_b64encode(f"u:{secret}".encode()).decode(),
}


def pieces(secret: str, length: int = 8) -> Iterator[str]:
    """All parts of *secret* that have that *length*; none may be visible."""
    return (secret[at : at + length] for at in range(len(secret) - length + 1))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", [ODD, ODD.replace('"', ""), ODD.replace("'", ""), "plain-word-of-letters"])
def test_no_usual_spelling_of_a_secret_stands_in_clear(spelling: str, secret: str) -> None:
    spelt = SPELLINGS[spelling](secret)
    shown = mask(f"said {spelt} there", {secret})
    assert "***" in shown
    assert [piece for piece in pieces(spelt) if piece in shown] == []
    assert shown.startswith("said ")
    assert shown.endswith(" there")


CUTS: dict[str, Callable[[str, int], str]] = {
    "line": lambda text, at: one_line(text, at),
    "error in an error": lambda text, at: f"failed: {one_line(text, at)}; and it is not retried",
    "capped, its head": lambda text, at: cap(text + "z" * 200, 64 + 2 * at),
    "capped, its tail": lambda text, at: cap("z" * 500 + text, 64 + 2 * (len(text) - at)),
    "exec": lambda text, at: f"… 17 bytes before this were not kept …\n{text[at:]}",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if "'x" not in name])
def test_no_cut_leaves_a_part_of_a_secret(spelling: str, cut: str) -> None:
    spelt = SPELLINGS[spelling](ODD)
    text = f"said that {spelt}, thrice"
    for at in range(1, len(text)):
        shown = mask(CUTS[cut](text, at), {ODD})
        assert [piece for piece in pieces(spelt) if piece in shown] == [], at


@pytest.mark.parametrize(
    "text",
    [
        "see http://localhost:8080…",
        "waiting… for c4n and the rest…",
        "postgresql://db/shop…",
        "… and ada@example.org",
    ],
)
def test_a_cut_that_leaves_no_secret_is_shown_as_it_is(text: str) -> None:
    assert mask(text, {"c4n4ry-one"}) == text


def test_a_cut_leaves_no_part_of_a_password_that_nobody_declared() -> None:
    text = "at postgresql://ada:pa55word-of-ada@db.example/shop"
    for at in range(len("at postgresql://ada:p") + 4, len(text)):
        for shown in (mask(one_line(text, at), ()), mask(f"{text[:at]}\n… 5 bytes left out …\n{text[at:]}", ())):
            assert "pa55" not in shown
            assert "of-ada@" not in shown


@pytest.mark.parametrize(
    "name",
    [
        "JWT",
        "SLACK_WEBHOOK",
        "WEBHOOK_URL",
        "COOKIE",
        "SESSION_COOKIE",
        "SESSION",
        "GITHUB_PAT",
        "SALT",
        "PASSWORD_SALT",
        "HMAC",
        "PIN",
        "STRIPE_SK",
    ],
)
def test_names_that_people_give_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "SPIN",
        "PINNED",
        "PATIENT",
        "SESSION_COOKIE_NAME",
        "JWT_ALGORITHM",
        "XDG_SESSION_TYPE",
        "DESKTOP_SESSION",
        "SKIP",
    ],
)
def test_a_name_that_only_looks_like_one_is_none(name: str) -> None:
    assert not is_secret_name(name)


def test_of_a_database_url_only_what_is_known_to_be_harmless_is_shown() -> None:
    harmless = "sslmode=verify-full&application_name=shop-jobs&sslrootcert=/etc/ssl/ca.pem&connect_timeout=10000000"
    assert named_secrets({"": f"postgresql://u@h/d?{harmless}&options=-c%20search_path%3Dcustomers"}) == set()
    misspelt = "postgresql://u@h/d?passwrd=ss3cret%2Fword&options=-c%20app.tokn%3D0ther-word"
    assert named_secrets({"": misspelt}) >= {"ss3cret%2Fword", "ss3cret/word", "0ther-word"}
    for text in ("ss3cret", "0ther"):
        assert text not in str(parse_url(misspelt))
    assert "verify-full" in str(parse_url(f"postgresql://u@h/d?{harmless}"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ghp_12345678@github.com/a", "https://***@github.com/a"),
        ("ssh://git@github.com/a postgresql://ada@db/shop", "ssh://git@github.com/a postgresql://ada@db/shop"),
        ("GET /v1?api_key=unknown&access-token=unknown&x=1", "GET /v1?api_key=***&access-token=***&x=1"),
        ("/jobs?key=invoice-7", "/jobs?key=invoice-7"),
        ("at postgresql://u:unknown@h/d: refused", "at postgresql://u:***@h/d: refused"),
        ("postgresql://u:pa@ss@host/d", "postgresql://u:***@host/d"),
        ("?sslpassword=unknown&x=1 of http://h", "?sslpassword=***&x=1 of http://h"),
        ("GET /login?user=ada&password=unknown 401", "GET /login?user=ada&password=*** 401"),  # a path alone
        ("see https://h:8080/path?mail=a@b", "see https://h:8080/path?mail=a@b"),
    ],
)
def test_a_password_in_a_url_is_masked_though_nobody_said_that_it_is_one(text: str, shown: str) -> None:
    assert mask(text, ()) == shown


@pytest.mark.parametrize("secrets", [frozenset(), frozenset({"something else"})])
def test_a_handlers_error_is_masked_though_no_secret_is_known(secrets: frozenset[str]) -> None:
    said = "cannot reach postgresql://app:pa55word@db/shop"
    failed = masked(Failed(said, "OSError", traceback=f"Traceback\nOSError: {said}"), secrets)
    assert isinstance(failed, Failed)
    assert "pa55word" not in f"{failed.error} {failed.traceback}"
    assert "app:***@db/shop" in failed.error


HIDING = """
import sys
from cronjobs import GiveUp, job

@job("pay", isolation=%r)
def pay(ctx, card, to):
    ctx.progress(1, 2, note=f"charging {card}")
    print("card", card, to, flush=True)
    raise GiveUp(f"{card!r} of {to['iban']} was refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_no_sentence_repeats_what_hide_hides(sqlite_migrated: str, tmp_path: Path, isolation: str) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write("log: cronjobs.log\njob_types: {pay: {hide: [card, to]}}", HIDING % isolation)
    payload = json.dumps({"card": "c4n4ry'\"of card", "to": {"iban": 111122223333}})
    assert project.run("enqueue", "pay", "--payload", payload).code == 0
    tick = project.run("run-due", "-v")
    assert "was refused" in tick.out + tick.err
    said = [tick.out + tick.err, (tmp_path / "cronjobs.log").read_text()]
    said += [answer.out + answer.err for command in SHOWING[:6] if (answer := project.call(*command))]
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        said.append(str(connection.execute("SELECT * FROM cronjobs_job_runs").fetchall()))
        said.append(str(connection.execute("SELECT last_error, progress FROM cronjobs_jobs").fetchall()))
    for text in said:
        assert "c4n4ry" not in text
        assert "111122223333" not in text


def test_a_payload_of_any_depth_is_looked_through_for_what_is_hidden() -> None:
    deep: object = {"card": "c4n4ry-one"}
    for _ in range(100_000):
        deep = [deep]
    assert values_under(deep, ("card",)) == {"c4n4ry-one"}


def test_json_is_masked_inside_and_stays_json() -> None:
    remember({"c4n4ry-one"})
    value = {"c4n4ry-one": ["xc4n4ry-oney", 5, None, {"a": True}]}
    assert hide_in(value) == {"***": ["x***y", 5, None, {"a": True}]}


def test_each_way_out_masks_by_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    secret = 'c4n4ry "quoted"'
    remember({secret})
    echo(secret)
    complain(secret)
    echo_json([secret])
    show.write([secret])
    show.write([json_text({secret: secret})])
    assert "c4n4ry" not in json_text({secret: secret})
    assert safe(secret, 8) == "***"  # before it is cut
    assert show.block(secret, "") == ["***"]
    Log(tmp_path / "log").write(events.Event("job.dead", {"error": secret}))
    said = capsys.readouterr()
    for text in (said.out, said.err, (tmp_path / "log").read_text()):
        assert "***" in text
        assert "c4n4ry" not in text


def test_a_password_with_an_at_sign_is_a_password_not_a_host() -> None:
    address = parse_url("postgresql://u:pa@ss@host:5433/d")
    assert (address.url.username, address.url.password, address.url.host) == ("u", "pa@ss", "host")
    assert "ss@host" not in str(address)


def test_what_the_tables_show_by_name_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ENVIRONMENT=production\nOTHER=something-else\n")
    file = tmp_path / "cronjobs.yaml"
    file.write_text("database: sqlite:///x.db\nenv_file: .env\nenvironment: ${ENVIRONMENT}\n")
    found = load(file, environ={})
    assert found.environment == "production"
    assert found.secrets == frozenset({"something-else"})


# --- a canary in every place that a secret may come from -------------------------------------------------------------

CANARIES = {
    "real": "c4n4ry-real-variable",
    "env_file": "c4n4ry-env-file",
    "file": "c4n4ry-from-a-file",
    "block": "c4n4ry-env-block",
    "filled": "c4n4ry-filled-in",
    "url": "c4n4ry-url-pw",
    "pem": "-----BEGIN c4n4ry\nc4n4ry/second/line\n-----END c4n4ry",
}
HANDLERS = """
import logging, os
from cronjobs import GiveUp, job

def all_of_them():
    names = ["SHOP_TOKEN", "PLAIN", "FROM_FILE", "BLOCK_SECRET", "OTHER_URL", "PEM"]
    return " ".join(os.environ[name] for name in names)

@job("t.tells", isolation=%r)
def tells(token=None):
    print(all_of_them(), token)
    logging.getLogger("shop").error("%%s", all_of_them())
    raise GiveUp(all_of_them() + str(token))
"""
YAML = """
env_file: .env
env: {{FROM_FILE: '${{file:token}}', BLOCK_SECRET: c4n4ry-env-block, PEM: '${{file:pem}}'}}
log: {log}
job_types:
  t.command: {{command: [/bin/sh, -c, "echo $SHOP_TOKEN ${{FILLED}}; env; exit 3"], retry: {{max_attempts: 1}}}}
schedules:
  nightly: {{cron: "0 0 1 1 *", job: t.tells, payload: {{token: "${{FILLED}}"}}}}
"""
SHOWING: list[tuple[str, ...]] = [
    ("status",),
    ("history",),
    ("jobs", "list"),
    ("jobs", "list", "--group-by", "error"),
    ("jobs", "show", "1"),
    ("jobs", "show", "3"),
    ("explain", "1"),
    ("schedules", "list"),
    ("schedules", "show", "nightly"),
    ("sync", "--plan"),
    ("check",),
]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_canary_is_in_no_text_that_is_stored_or_shown(
    sqlite_migrated: str, tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    (tmp_path / ".env").write_text(f"PLAIN={CANARIES['env_file']}\n")
    (tmp_path / "token").write_text(CANARIES["file"])
    (tmp_path / "pem").write_text(CANARIES["pem"])
    project.write(YAML.format(log="cronjobs.jsonl" if isolation == "process" else "cronjobs.log"), HANDLERS % isolation)
    real = {
        "SHOP_TOKEN": CANARIES["real"],
        "FILLED": CANARIES["filled"],
        "OTHER_URL": f"redis://u:{CANARIES['url']}@h/0",
    }
    for line in ("sync", "trigger nightly", "enqueue t.command", "enqueue t.tells"):
        answer = project.run(*line.split(), env=real)
        assert answer.code == 0, answer
        assert "c4n4ry" not in answer.out + answer.err
    tick = project.run("run-due", "-v", env=real)
    assert tick.code == 1
    assert "3 dead" in tick.out + tick.err
    log = next(tmp_path.glob("cronjobs.*l*g*")) if isolation == "thread" else tmp_path / "cronjobs.jsonl"
    said = [tick.out + tick.err, log.read_text()]
    for name, value in real.items():
        monkeypatch.setenv(name, value)
    for command in SHOWING:
        for form in ((), ("--json",)):
            answer = project.call(*command, *form)
            assert answer.code in (0, 1, 2), answer  # 2: the command has no --json
            said.append(answer.out + answer.err)
    assert len("".join(said)) > 2000
    for text in said:
        assert "c4n4ry" not in text
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        stored = connection.execute("SELECT error, traceback, output FROM cronjobs_job_runs").fetchall()
        errors = connection.execute("SELECT last_error FROM cronjobs_jobs").fetchall()
        [payload] = connection.execute("SELECT payload FROM cronjobs_jobs WHERE schedule = 'nightly'").fetchone()
    assert len(stored) == 3
    assert all("***" in (output or "") for _, _, output in stored)
    assert "c4n4ry" not in str([stored, errors])
    assert json.loads(payload) == {"token": CANARIES["filled"]}  # the handler needs it


def test_check_advises_to_read_secrets_in_the_handler(sqlite_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(
        YAML.format(log="none").replace("env_file: .env\n", "").split("job_types")[0].split("env:")[0]
        + """
schedules:
  nightly: {cron: "0 0 1 1 *", job: t.tells, payload: {token: "${SHOP_TOKEN}"}}
""",
        HANDLERS % "thread",
    )
    answer = project.run("check", env={"SHOP_TOKEN": CANARIES["real"]})
    assert "schedules.nightly.payload: a secret in a payload is stored in the database in clear text" in answer.out
    assert answer.code == 0


def test_a_command_inherits_only_what_its_entry_names(sqlite_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(
        """
job_types:
  few: {command: [/usr/bin/env], inherit_env: [PATH, LANG], env: {OWN: here}}
  none: {command: [/usr/bin/env], inherit_env: []}
"""
    )
    for job_type in ("few", "none"):
        project.run("enqueue", job_type)
    assert project.run("run-due", env={"SHOP_TOKEN": CANARIES["real"], "LANG": "C"}).code == 0
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        few, none = (
            row[0].split() for row in connection.execute("SELECT output FROM cronjobs_job_runs ORDER BY job_id")
        )
    assert {line.split("=")[0] for line in few if not line.startswith("CRONJOBS_")} == {"PATH", "LANG", "OWN"}
    assert all(line.startswith("CRONJOBS_") for line in none)


def test_only_a_command_has_an_environment_to_choose(tmp_path: Path) -> None:
    file = tmp_path / "cronjobs.yaml"
    file.write_text(
        "database: sqlite:///x.db\njob_types: {a: {inherit_env: [PATH]}, b: {command: [x], inherit_env: ['A B']}}"
    )
    said = [str(problem) for problem in load(file, environ={}).problems]
    assert "a handler has the environment of the tick" in said[0]
    assert "is not the name of a variable" in said[1]


@pytest.mark.parametrize("spell", [str, repr, json.dumps])
def test_json_for_people_hides_what_a_value_spells_in_any_way(spell: Callable[[str], str]) -> None:
    remember({ODD})
    assert hidden_json({"said": [spell(ODD)]}).count("***") == 1


def test_keys_that_hold_a_secret_are_found_at_any_depth_and_survive_a_jobs_meta() -> None:
    payload = {"a": 1, "url": "https://h/geheim-4711", "deep": [{"token": ["x", "geheim-4711"]}, "geheim-4711"]}
    keys = keys_holding(payload, {"geheim-4711"})
    assert keys == {"url", "token", "deep"}
    assert keys_of_meta({"trace": "1"} | as_meta(keys)) == keys
    assert as_meta(keys_holding({"a": "b"}, {"geheim-4711"})) == {}
    for written in ("[", "7", '"url"', '{"url": 1}', "[" * 100_000):
        assert keys_of_meta({"cronjobs.secret_keys": written}) == frozenset()
    assert keys_of_meta({"cronjobs.secret_keys": 7}) == keys_of_meta(None) == frozenset()
    assert keys_of_meta({"cronjobs.secret_keys": '["url", 1]'}) == {"url"}
