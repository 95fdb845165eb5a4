"""Jobs and schedules in Django's admin, read-only, with actions that retry and cancel jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]
from django.contrib import admin  # type: ignore[import-untyped]
from django.contrib.messages import ERROR, SUCCESS, WARNING  # type: ignore[import-untyped]
from django.core.paginator import Paginator  # type: ignore[import-untyped]
from django.db import transaction  # type: ignore[import-untyped]
from django.db.models import Q  # type: ignore[import-untyped]
from django.utils.formats import date_format  # type: ignore[import-untyped]
from django.utils.functional import cached_property  # type: ignore[import-untyped]
from django.utils.html import format_html, format_html_join  # type: ignore[import-untyped]
from django.utils.timezone import template_localtime  # type: ignore[import-untyped]
from sqlalchemy.exc import DBAPIError

from cronjobs import masking
from cronjobs.contrib.django.apps import import_modules_of_apps
from cronjobs.contrib.django.connections import jobs_alias, ours
from cronjobs.contrib.django.instants import from_djangos, zone_name
from cronjobs.contrib.django.models import JobModel, JobRunModel, OccurrenceModel, ScheduleModel
from cronjobs.desk.insight.explain_named import explain_id
from cronjobs.desk.insight.formatting import LocalTimes, on_the_clock, tries
from cronjobs.desk.insight.stopped_jobs import SETTLE_FIRST, settling, stopped_jobs
from cronjobs.engine.config.django_project import config_file, database_url
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import as_database_error
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import assembled
from cronjobs.engine.store import operating
from cronjobs.engine.store.operating import BATCH, Changed, OperatorAction
from cronjobs.errors import ConfigError, Problem
from cronjobs.text import clean, one_line, visible

MOST_COUNTED: Final = 10_000  # lists stop counting at this many rows, because counting ten million rows takes seconds
RECENT: Final = 1000  # filters offer the types and queues of this many newest jobs
ATTEMPTS: Final = 20
STOPPED_SHOWN: Final = 5  # for at most this many jobs, name the effect that has stopped the job; count the rest
LONGEST: Final = 20_000  # a longer value is cut to this many characters


if admin.site.index_template is None:  # Keep a template that the site has set.
    # Ours is Django's admin/index.html with a link to the pages.
    admin.site.index_template = "cronjobs/admin_index.html"


class CappedPaginator(Paginator):
    """Stops counting rows at MOST_COUNTED, because nobody pages further than that."""

    @cached_property
    def count(self) -> int:
        return int(self.object_list[: MOST_COUNTED + 1].count())


class RecentFilter(admin.SimpleListFilter):
    """Filters by a column. The user chooses from the values that the newest jobs have."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        recent = JobModel.objects.order_by("-id").values_list(self.parameter_name, flat=True)[:RECENT]
        return [(value, _text(value)) for value in sorted({*recent})]

    def queryset(self, request: Any, queryset: Any) -> Any:
        if (value := self.value()) is None:
            return queryset
        if clean(value) != value:  # the value has a NUL, which PostgreSQL would refuse
            return queryset.none()
        return queryset.filter(**{self.parameter_name: value})


class TypeFilter(RecentFilter):
    title = "type"
    parameter_name = "job_type"


class QueueFilter(RecentFilter):
    title = "queue"
    parameter_name = "queue"


def _text(value: Any) -> str:
    """Make stored text safe to show: mask secrets, escape control characters and bidirectional overrides."""
    return visible(masking.hide(str(value or "")))


def _column(name: str) -> Callable[[Any, Any], str]:
    """Make a column that shows the value of the field called *name*, made safe by ``_text``."""

    @admin.display(description=name.replace("_", " "))
    def shown(_admin: Any, row: Any) -> str:
        return _text(getattr(row, name))

    return shown


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows read-only, with actions for users who have the change permission."""

    paginator = CappedPaginator
    show_full_result_count = False

    def get_queryset(self, request: Any) -> Any:
        _configuration()  # masks its secrets from now on
        return super().get_queryset(request)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return obj is None and bool(super().has_change_permission(request))


@admin.register(JobModel)
class JobAdmin(ReadOnlyAdmin):
    shown_type, shown_queue, shown_schedule = _column("job_type"), _column("queue"), _column("schedule")
    shown_enqueuer, shown_holder, whole_error = _column("enqueued_by"), _column("locked_by"), _column("last_error")
    shown_key, shown_concurrency_key = _column("idempotency_key"), _column("concurrency_key")
    list_display = ("id", "shown_type", "status", "shown_queue", "run_at", "tries", "error", "shown_schedule")
    list_filter = ("status", TypeFilter, QueueFilter)
    # Without search_fields, Django shows no search box. get_search_results decides what the box searches.
    search_fields = ("id",)
    search_help_text = "A job's id, its full type, or its full idempotency key"
    sortable_by = ("id",)  # the other columns have no index to sort by
    actions = ("retry", "cancel")

    def get_queryset(self, request: Any) -> Any:
        """Defer the JSON columns, which may be large, and which no list shows."""
        return super().get_queryset(request).defer("payload", "meta", "result")

    fields = (
        *("explanation", "status", "shown_type", "shown_queue", "priority", "run_at", "tries", "whole_error"),
        *("shown_payload", "shown_meta", "shown_result", "shown_key", "shown_concurrency_key", "shown_schedule"),
        *(
            "shown_enqueuer",
            "created_at",
            "started_at",
            "finished_at",
            "cancel_requested_at",
            "shown_holder",
            "made",
        ),
    )

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        by = Q(job_type=term) | Q(idempotency_key=term)
        if term.isascii() and term.isdecimal() and len(term) < 19:
            by |= Q(id=int(term))
        return queryset.filter(by), False

    # --- columns ------------------------------------------------------------------------------------------------------

    @admin.display(description="tries")
    def tries(self, job: Any) -> str:
        return tries(job.failures, job.max_attempts)

    @admin.display(description="last error")
    def error(self, job: Any) -> str:
        if job.status == "succeeded":  # last_error is then from an earlier try
            return ""
        return one_line(masking.hide(job.last_error or ""), 120)

    @admin.display(description="what became of it")
    def explanation(self, job: Any) -> str:
        known = _configuration()
        import_modules_of_apps()
        with ours() as connection:
            explanation = explain_id(connection, job.pk, known, lambda: assembled(known, []))
        return format_html_join(
            "", "<p>{}</p>", ((masking.hide(line),) for line in (explanation.sentences if explanation else ()))
        )

    @admin.display(description="payload")
    def shown_payload(self, job: Any) -> str:
        if job.payload is None:
            return "cannot be read"
        return _json(_configuration().shown_payload(job.job_type, job.payload, masking.keys_of_meta(job.meta)))

    @admin.display(description="meta")
    def shown_meta(self, job: Any) -> str:
        return _json(job.meta)

    @admin.display(description="result")
    def shown_result(self, job: Any) -> str:
        return "" if job.result is None else _json(job.result)

    @admin.display(description="attempts")
    def made(self, job: Any) -> str:
        newest = JobRunModel.objects.filter(job_id=job.pk).order_by("-attempt")[:ATTEMPTS]
        return format_html_join("", "<p>{}. {}: {} – {}, {} {}</p>{}", map(_attempt, reversed(newest)))

    # --- actions ------------------------------------------------------------------------------------------------------

    @admin.action(description="Retry: due now, with all tries restored", permissions=["change"])
    def retry(self, request: Any, queryset: Any) -> None:
        self._act(request, queryset, "retry", operating.retry, "queued again")

    @admin.action(description="Cancel waiting jobs now; ask running jobs to stop", permissions=["change"])
    def cancel(self, request: Any, queryset: Any) -> None:
        self._act(request, queryset, "cancel", operating.cancel, "cancelled")

    def _act(self, request: Any, queryset: Any, name: str, write: Callable[..., Changed], done: str) -> None:
        """Change the chosen jobs in the user's name, in short transactions, so that ticks wait only briefly."""
        actor = one_line(clean(request.user.get_username()), 200)
        act = OperatorAction(name, actor, Identity.here().host, None)
        chosen = list(queryset.order_by("id").values_list("id", flat=True))
        changed, asked = 0, 0
        stopped: dict[int, str] = {}
        for begin in range(0, len(chosen), BATCH):
            try:
                with transaction.atomic(using=jobs_alias()), ours() as connection:
                    batch = chosen[begin : begin + BATCH]
                    stopped |= stopped_jobs(connection, batch) if name == "retry" else {}
                    found = write(connection, [each for each in batch if each not in stopped], act)
            except DBAPIError as error:  # for example, the role of DATABASES may only read
                why = as_database_error(parse_url(database_url()), error)
                self.message_user(request, f"{why} ({changed + asked} of {len(chosen)} were changed)", ERROR)
                return
            changed, asked = changed + len(found.done), asked + len(found.asked)
        left = len(chosen) - changed - asked - len(stopped)
        words = [f"{changed} {done}"]
        if asked:
            words.append(f"{asked} running and asked to stop")
        if left:
            words.append(f"{left} unchanged: their status does not allow this, or another transaction has locked them")
        words += [
            f'job {job_id} unchanged: {SETTLE_FIRST}: find out, then type "{settling(key)}" (or not-done)'
            for job_id, key in [*stopped.items()][:STOPPED_SHOWN]
        ]
        if len(stopped) > STOPPED_SHOWN:
            words.append(f"{len(stopped) - STOPPED_SHOWN:,} more unchanged because of unknown effects")
        said = masking.hide("; ".join(words))
        self.message_user(request, said, WARNING if left or stopped else SUCCESS)


@admin.register(ScheduleModel)
class ScheduleAdmin(ReadOnlyAdmin):
    shown_name = _column("name")
    list_display = ("shown_name", "status", "next_at", "last")
    list_filter = ("status",)
    search_fields = ("name",)
    fields = ("shown_name", "status", "next_at", "seen_until", "shown_definition", "newest")

    @admin.display(description="last occurrence")
    def last(self, schedule: Any) -> str:
        found = OccurrenceModel.objects.filter(schedule_id=schedule.pk).order_by("-last_for").first()
        return "" if found is None else f"{_shown(found.last_for)} {found.outcome}"

    @admin.display(description="definition")
    def shown_definition(self, schedule: Any) -> str:
        return _json(_configuration().shown_definition(schedule.definition))

    @admin.display(description="newest occurrences")
    def newest(self, schedule: Any) -> str:
        found = OccurrenceModel.objects.filter(schedule_id=schedule.pk).order_by("-last_for")[:ATTEMPTS]
        return format_html_join("", "<p>{}: {} {} {}</p>", map(_occurrence, found))


def _attempt(run: Any) -> tuple[Any, ...]:
    words = _text(run.traceback)
    trace = format_html("<pre>{}</pre>", words) if words else ""
    return (
        run.attempt,
        run.outcome,
        _shown(run.started_at),
        _shown(run.finished_at),
        _text(run.error_type),
        _text(run.error),
        trace,
    )


def _occurrence(row: Any) -> tuple[str, ...]:
    job = f"job {row.job_id}" if row.job_id else ""
    times = LocalTimes(from_djangos(row.last_for), zone_name())
    return _shown(row.last_for), row.outcome, _text(on_the_clock(row.reason or "", times)), job


def _shown(instant: Any) -> str:
    return str(date_format(template_localtime(instant), "DATETIME_FORMAT"))


def _json(value: Any) -> str:
    written = masking.hidden_json(value, indent=2)
    return format_html("<pre>{}</pre>", visible(written[:LONGEST]))


def _configuration() -> Settings:
    """Return the project's configuration. If the file is unreadable, return settings that show no payload."""
    file = config_file(settings)
    try:
        found = load(file, environ=os.environ, need_database=False, only_database=True)
    except ConfigError as error:  # "cronjobs check" reports the fault
        place = (file or Path("cronjobs.yaml")).absolute()
        found = Settings(place, place.parent, problems=(*error.problems, Problem(str(place), 0, 0, "job_types", "")))
    masking.remember(found.secrets | masking.named_secrets(os.environ))
    return found
