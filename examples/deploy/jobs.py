"""The handlers. Replace this one with the handlers of your app."""

from __future__ import annotations

from cronjobs import Context, job


@job("reports.nightly", timeout="20s")
def nightly(ctx: Context) -> None:
    print(f"the report of {ctx.scheduled_for:%Y-%m-%d}" if ctx.scheduled_for else "a report")
