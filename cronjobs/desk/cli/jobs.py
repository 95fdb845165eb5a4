"""The table of the commands under ``cronjobs jobs``."""

from __future__ import annotations

from cronjobs.desk.cli.commands import CommandRow, Commands, LazyGroup


class JobsGroup(LazyGroup):
    table = {  # noqa: RUF012 never changed
        "list": CommandRow(
            "jobs_list:list_jobs",
            "List jobs, newest first; with --status succeeded, dead or cancelled, most recently ended first.",
            epilog="For example: cronjobs jobs list --status dead --since 24h, jobs list --group-by error",
        ),
        "show": CommandRow(
            "jobs_list:show",
            "Show one job: its facts, every attempt with error and output, and what happens next.",
            epilog="For example: cronjobs jobs show 17",
        ),
        "tail": CommandRow(
            "jobs_tail:tail",
            "Print the output of a job's attempt so far; with -f, follow it until it ends.",
            epilog="For example: cronjobs jobs tail 17 -f",
        ),
        "retry": CommandRow(
            "jobs_change:retry",
            "Requeue dead, cancelled or retrying jobs: due now, with all their tries restored.",
            epilog="For example: cronjobs jobs retry 17 18, jobs retry --cause 234d9b42d381",
        ),
        "cancel": CommandRow(
            "jobs_change:cancel",
            "Cancel jobs: waiting jobs at once, running jobs at their runner's next heartbeat.",
            epilog='For example: cronjobs jobs cancel 17 --why "sent by hand", jobs cancel --queue mail',
        ),
        "release": CommandRow(
            "jobs_change:release",
            "Requeue running jobs whose runner is certainly gone, without waiting for their lease to expire.",
            epilog="For example: cronjobs jobs release 17, jobs release --all",
        ),
        "dismiss": CommandRow(
            "jobs_change:dismiss",
            'Acknowledge dead jobs: they stay dead, but no longer turn "status" and "check --live" red.',
            epilog="For example: cronjobs jobs dismiss 17, jobs dismiss --cause 234d9b42d381",
        ),
    }


app = Commands("List, show, retry, cancel or release jobs.", cls=JobsGroup)
