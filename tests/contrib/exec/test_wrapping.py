"""``crontab wrap`` puts exec before every command, and ``unwrap`` restores the same bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronjobs.contrib.exec import wrapping
from cronjobs.contrib.exec.arguments import read_arguments
from cronjobs.desk.crontab import block, lines

PROGRAM = "/srv/app/.venv/bin/cronjobs"

CRONTAB = r"""# m h dom mon dow command
MAILTO=ops@example.com
PATH=/usr/local/bin:/usr/bin:/bin
 SHELL = "/bin/bash"

*/5 *	* * *	/usr/local/bin/poll --fast
17 * * * * cd / && run-parts --report /etc/cron.hourly
25 6 * * * test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
0 3 * * 1-5 pg_dump app | gzip > /backup/app-$(date +\%F).gz 2>>/var/log/backup.log
0 9 * * mon mail -s 'It'"'"'s Monday' ada%Dear Ada,%the week begins.%
@daily FOO='a b' nice -n 10 /usr/bin/python3 /srv/app/manage.py clearsessions >/dev/null 2>&1
@reboot /srv/app/start
@hourly flock -n /tmp/x.lock /srv/app/bin/sync.sh # every hour
# 1 2 3 4 5 off
30 4 1,15 * * echo 'back\\slash \%' "$HOME"
"""


def test_each_line_gets_a_name_and_keeps_its_fields_and_its_input() -> None:
    done = wrapping.wrap(CRONTAB, PROGRAM, "/srv/app/cronjobs.yaml")
    assert [change.name for change in done.changes] == [
        *("poll", "run-parts-cron.hourly", "run-parts-cron.daily", "pg_dump-app", "mail"),
        *("manage-clearsessions", "sync", "echo"),
    ]
    assert [(each.line.command, each.why) for each in done.left] == [
        ("/srv/app/start", "the line runs at boot, so it has no due time")
    ]
    before, after = CRONTAB.split("\n"), done.text.split("\n")
    same = [line for line, new in zip(before, after, strict=True) if line == new]
    assert len(same) == len(before) - 8
    head = f"{PROGRAM} exec mail --config /srv/app/cronjobs.yaml -c"
    monday = r"""'mail -s '\''It'\''"'\''"'\''s Monday'\'' ada'%Dear Ada,%the week begins.%"""
    assert f"0 9 * * mon {head} {monday}" in after
    assert wrapping.unwrap(done.text).text == CRONTAB
    again = wrapping.wrap(done.text, PROGRAM, "/srv/app/cronjobs.yaml")
    assert (again.text, again.changes) == (done.text, ())


def as_cron_reads(command: str, *, debian: bool) -> tuple[str, str]:
    r"""What do_command.c gives the shell, and stdin: cronie undoes "\%", Debian's cron "\\", too."""
    line, escaped = "", False
    for at, character in enumerate(command):
        if escaped:
            if character == "%" or (character == "\\" and debian):
                line = line[:-1]
            line, escaped = line + character, False
        elif character == "%":
            return line, command[at + 1 :]
        else:
            line, escaped = line + character, character == "\\"
    return line, ""


COMMANDS = st.text(st.sampled_from("ab '\"\\%$;&\t#ü\udcff"), min_size=1).map("x".__add__)


@given(COMMANDS, st.booleans())
def test_the_shell_and_stdin_get_the_same_of_a_wrapped_command_whatever_its_text(command: str, debian: bool) -> None:
    line, given_input = as_cron_reads(command, debian=debian)
    new = wrapping.wrapped(command, "name", "/bin/cronjobs", None)
    new_line, new_input = as_cron_reads(new, debian=debian)
    assert new_input == given_input
    head = "/bin/cronjobs exec name -c "
    assert new_line.startswith(head)
    quoted = new_line.removeprefix(head)
    # the shell reads one word from this, and the word is the line
    assert quoted == "'" + line.replace("'", r"'\''") + "'"
    text = f"# first\n1 2 3 4 5 {command}\n6 7 8 9 0 {command}"
    assert wrapping.unwrap(wrapping.wrap(text, "/bin/cronjobs", "/a\\%b.yaml").text).text == text


def test_a_real_shell_passes_the_line_to_exec(tmp_path: Path) -> None:
    program = tmp_path / "cronjobs"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    line = r"""echo 'a b' "c'd" \\ $(date) `id` !x ~"""
    new = wrapping.wrapped(line, "name", block.shell_words([str(program)]), block.shell_words(["/my app/c.yaml"]))
    got = subprocess.run(["/bin/sh", "-c", new], capture_output=True, text=True, check=True).stdout.splitlines()
    assert got == ["exec", "name", "--config", "/my app/c.yaml", "-c", line]
    assert read_arguments(got).line == line


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@reboot x", "the line runs at boot"),
        (
            "SHELL=/usr/bin/fish\n@daily x",
            "SHELL=/usr/bin/fish: crontab wrap can quote a line only for sh and similar shells",
        ),
        ("* * * * * " + "x" * 950, "cron accepts at most 998"),
    ],
)
def test_what_cannot_be_wrapped_is_left_and_named(line: str, why: str) -> None:
    done = wrapping.wrap(line, PROGRAM, None)
    assert done.text == line
    assert why in done.left[0].why


def test_the_longest_line_that_cron_takes_is_wrapped() -> None:
    room = block.LONGEST_COMMAND - len(wrapping.wrapped("", "x" * 60, PROGRAM, None))
    assert wrapping.wrap(f"* * * * * {'x' * room}", PROGRAM, None).changes
    assert wrapping.wrap(f"* * * * * {'x' * (room + 1)}", PROGRAM, None).left


def test_lines_of_ours_and_of_others_named_alike_are_told_apart() -> None:
    ours = block.block(Path("/srv/shop/cronjobs.yaml"), Path("/srv/shop/.venv/bin/python"))
    text = f"{ours}* * * * * cronjobs --config x exec mine --cron '* * * * *' -- true\n"
    text += "0 * * * * kubectl -n cronjobs exec a\n"
    done = wrapping.wrap(text, PROGRAM, None)
    assert [change.name for change in done.changes] == ["kubectl-cronjobs"]
    assert [lines.exec_name(line) for line in lines.job_lines(done.text)] == ["mine", "kubectl-cronjobs"]
    assert [lines.exec_name(each.line) for each in wrapping.unwrap(done.text).left] == ["mine"]


def test_names_are_unique_also_beside_those_that_are_there() -> None:
    text = f"1 * * * * {PROGRAM} exec backup -c 'x'\n2 * * * * backup\n3 * * * * /opt/backup.sh\n"
    assert [change.name for change in wrapping.wrap(text, PROGRAM, None).changes] == ["backup-2", "backup-3"]
