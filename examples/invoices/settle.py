"""Settle mails of which it is unknown whether they went out. Look them up in the mail server's log.

The runner died, or the connection broke, after the mail was sent and before the server's answer was read. If the log
has the Message-ID, the mail went out. This script settles each such effect by what the log says, and queues the jobs
again.
"""

from __future__ import annotations

import json
import subprocess
import sys

from mail import message_id
from shop import HERE

CRONJOBS = [sys.executable, "-P", "-m", "cronjobs"]
LOG = HERE / "mails.jsonl"  # with a real mail server, search /var/log/mail.log for the Message-ID


def cronjobs(*arguments: str) -> str:
    return subprocess.run([*CRONJOBS, *arguments], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    logged = LOG.read_text() if LOG.exists() else ""
    stopped = json.loads(
        cronjobs("effects", "list", "--state", "stopped", "--key", "invoice-mail:", "--limit", "1000", "--json")
    )
    for effect in stopped:
        verdict = "done" if message_id(effect["key"]) in logged else "not-done"
        cronjobs("effects", "settle", effect["key"], verdict, "--why", "by the mail server's log")
        print(f"{effect['key']}: {verdict}")
    if stopped:
        cronjobs("jobs", "retry", "--type", "invoices.mail", "--error-type", "EffectUnknown", "--yes")
    print(f"{len(stopped)} settled")


if __name__ == "__main__":
    main()
