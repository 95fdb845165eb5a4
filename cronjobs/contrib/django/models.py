"""Our tables as read-only, unmanaged models, for queries and the admin.

An example is ``JobModel.objects.filter(status="dead")``. To enqueue, cancel or retry, use the functions of
``cronjobs``, whose writes are fenced and audited.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import models  # type: ignore[import-untyped]

from cronjobs.contrib.django.connections import jobs_alias
from cronjobs.contrib.django.fields import AnyTextField, InstantField, JsonField
from cronjobs.desk.insight.formatting import status_word
from cronjobs.model import Status
from cronjobs.text import visible


class JobsManager(models.Manager):
    """Queries the jobs database by default. ``using`` selects another database."""

    def get_queryset(self) -> Any:
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(jobs_alias())


STATUSES: Final = [(str(each.value), status_word(each.value)) for each in Status]


class JobModel(models.Model):
    id = models.BigAutoField(primary_key=True)
    job_type = AnyTextField("type")
    payload = JsonField()
    meta = JsonField()
    queue = AnyTextField()
    priority = models.SmallIntegerField(help_text="from 0 (first) to 9 (last)")
    status = AnyTextField(choices=STATUSES)
    run_at = InstantField("due")
    attempts = models.IntegerField(help_text="how many times a runner has claimed the job")
    failures = models.IntegerField(help_text="how many attempts count against max_attempts")
    losses = models.IntegerField(help_text="how many times the job's runner died")
    max_attempts = models.IntegerField(null=True, blank=True)
    timeout_s = models.FloatField(null=True, blank=True)
    locked_by = AnyTextField(null=True, blank=True)
    locked_until = InstantField(null=True, blank=True)
    idempotency_key = AnyTextField(null=True, blank=True)
    concurrency_key = AnyTextField(null=True, blank=True)
    schedule = AnyTextField(null=True, blank=True)
    scheduled_for = InstantField(null=True, blank=True)
    last_error = AnyTextField(null=True, blank=True)
    error_type = AnyTextField(null=True, blank=True)
    last_failed_at = InstantField(null=True, blank=True)
    result = JsonField(null=True, blank=True)
    enqueued_by = AnyTextField(null=True, blank=True)
    cancel_requested_at = InstantField(null=True, blank=True)
    created_at = InstantField("enqueued at")
    started_at = InstantField(null=True, blank=True)
    finished_at = InstantField(null=True, blank=True)
    dismissed_at = InstantField(null=True, blank=True)
    misfit_since = InstantField(null=True, blank=True)

    objects = JobsManager()

    class Meta:
        managed = False
        db_table = "cronjobs_jobs"
        verbose_name = "job"
        verbose_name_plural = "jobs"
        ordering = ("-id",)
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"job {self.pk} ({visible(str(self.job_type))})"


class JobRunModel(models.Model):
    """One attempt. An attempt gets its row when it has ended."""

    pk = models.CompositePrimaryKey("job_id", "attempt")
    job = models.ForeignKey(JobModel, models.DO_NOTHING, related_name="runs")
    attempt = models.IntegerField()
    outcome = AnyTextField()
    started_at = InstantField()
    finished_at = InstantField()
    runner = AnyTextField()
    worker = AnyTextField(null=True)
    error_type = AnyTextField(null=True)
    error = AnyTextField(null=True)
    traceback = AnyTextField(null=True)
    output = AnyTextField(null=True)

    objects = JobsManager()

    class Meta:
        managed = False
        db_table = "cronjobs_job_runs"
        verbose_name = "attempt"
        verbose_name_plural = "attempts"
        ordering = ("job", "attempt")
        default_permissions = ()

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}"


class ScheduleModel(models.Model):
    id = models.BigAutoField(primary_key=True)
    name = AnyTextField()
    definition = JsonField()
    status = AnyTextField(help_text="active, or retired if no file has the schedule")
    seen_until = InstantField(help_text="all occurrences up to this time are settled")
    next_at = InstantField("next", null=True)

    objects = JobsManager()

    class Meta:
        managed = False
        db_table = "cronjobs_schedules"
        verbose_name = "schedule"
        verbose_name_plural = "schedules"
        ordering = ("name",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return visible(str(self.name))


class OccurrenceModel(models.Model):
    """The outcome of a schedule's occurrences. A row covers ``count`` occurrences."""

    pk = models.CompositePrimaryKey("schedule_id", "last_for")
    schedule = models.ForeignKey(ScheduleModel, models.DO_NOTHING, related_name="occurrences", db_constraint=False)
    first_for = InstantField()
    last_for = InstantField()
    count = models.IntegerField()
    outcome = AnyTextField(help_text="enqueued, skipped, missed or coalesced")
    reason = AnyTextField(null=True)
    job = models.ForeignKey(JobModel, models.DO_NOTHING, null=True, db_constraint=False, related_name="occurrences")
    decided_at = InstantField()

    objects = JobsManager()

    class Meta:
        managed = False
        db_table = "cronjobs_occurrences"
        verbose_name = "occurrence"
        verbose_name_plural = "occurrences"
        ordering = ("-last_for",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.last_for} of schedule {self.schedule_id}"
