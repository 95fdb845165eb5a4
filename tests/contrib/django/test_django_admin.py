"""Jobs and schedules in Django's admin, on both databases: who sees what, and who may do what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.messages.storage.fallback import FallbackStorage  # type: ignore[import-untyped]
from django.core.exceptions import PermissionDenied  # type: ignore[import-untyped]
from django.core.management import call_command  # type: ignore[import-untyped]
from django.db import ProgrammingError  # type: ignore[import-untyped]
from django.test import RequestFactory, override_settings  # type: ignore[import-untyped]
from django.urls import clear_url_caches, include, path, re_path  # type: ignore[import-untyped]
from sqlalchemy import select
from support.django_project import django_project
from support.djangos import configured
from support.lookingrows import Rows, ago
from support.lookingrows import rows as rows
from support.postgres import ENQUEUE, OWNER, READ, RUN, as_role

from cronjobs import masking
from cronjobs.contrib.django.checks import pages_are_reached
from cronjobs.contrib.django.views import pages
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import effects as ledger
from cronjobs.errors import EffectUnknown
from cronjobs.testing import FakeClock

pytestmark = [pytest.mark.connects_as(OWNER), pytest.mark.filterwarnings("ignore::DeprecationWarning:django")]

urlpatterns: list[Any] = []  # the admin's addresses are added once it is set up


class User:
    """A user of whom the admin asks only which permissions they have."""

    is_active = is_staff = is_authenticated = True
    is_anonymous = False
    pk = id = 1

    def __init__(self, name: str, *may: str) -> None:
        self.name, self.may = name, may

    def has_perm(self, permission: str, obj: Any = None) -> bool:
        return permission.partition(".")[2].partition("_")[0] in self.may

    def has_module_perms(self, label: str) -> bool:
        return True

    def has_usable_password(self) -> bool:
        return True

    def get_username(self) -> str:
        return self.name

    get_short_name = get_username


ADA, BOB, EVE = User("ada", "view", "change"), User("bob", "view"), User("eve")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()  # Django's own connection knows no other


@pytest.fixture
def site(rows: Rows, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    config = tmp_path / "cronjobs.yaml"
    config.write_text("job_types: {t.pay: {hide: [card]}}\n")
    monkeypatch.setattr(masking, "_remembered", frozenset())
    with django_project(
        database_url, admin=True, ROOT_URLCONF=__name__, CRONJOBS={"config": config}, STATIC_URL="/static/"
    ) as alias:
        from django.contrib import admin  # type: ignore[import-untyped]

        call_command("migrate", "contenttypes", database=alias, verbosity=0)
        urlpatterns[:] = [path("admin/", admin.site.urls)]
        yield admin.site


def request(user: User, **fields: Any) -> Any:
    made = RequestFactory().post("/", fields) if fields else RequestFactory().get("/")
    made.user, made.session = user, {}
    made._messages = FallbackStorage(made)
    made._dont_enforce_csrf_checks = True
    return made


def words(response: Any) -> str:
    html = response.rendered_content if hasattr(response, "rendered_content") else response.content.decode()
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def of(site: Any, name: str) -> Any:
    from cronjobs.contrib.django import models

    return site.get_model_admin(getattr(models, name))


def listed(site: Any, user: User, query: str = "") -> str:
    asked = request(user)
    asked.GET = type(asked.GET)(query)
    return words(of(site, "JobModel").changelist_view(asked))


def act(site: Any, user: User, action: str, *ids: int) -> list[str]:
    asked = request(user, action=action, _selected_action=[str(each) for each in ids], index="0")
    of(site, "JobModel").changelist_view(asked)
    return [str(message) for message in asked._messages]


def column(database: Database, name: str) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(tables.jobs.c[name]).order_by(tables.jobs.c.id)).scalars())


def test_jobs_are_listed_filtered_and_found(site: Any, rows: Rows) -> None:
    rows.job(status="dead", job_type="t.pay", idempotency_key="invoice:7", last_error="no such order\nat all")
    rows.job(status="queued", job_type="t.other", queue="mail")
    rows.job(status="succeeded", job_type="t.done", attempts=2, last_error="the first try's")
    rows.job(status="failed", job_type="t.other", failures=2, max_attempts=3)
    everything = listed(site, BOB)
    assert "t.pay dead default" in everything
    assert "failed 2 of 3" in everything
    assert "t.other retrying" in everything
    assert "no such order" in everything
    assert "the first try" not in everything
    for query, count in (
        *(("q=2", 1), ("q=t.other", 2), ("q=invoice:7", 1), ("q=t.oth", 0), ("q=%F0%9F%98%80", 0)),
        *(("status=failed", 1), ("job_type=t.other", 2), ("queue=mail", 1), ("q=99999999999999999999", 0)),
    ):
        assert f"{count} job{'' if count == 1 else 's'}" in listed(site, BOB, query), query


def test_a_page_explains_the_job_and_shows_no_secret(site: Any, rows: Rows) -> None:
    payload = {"card": "4111 1111", "invoice": 7, "html": "<script>", "pin": "r0tated"}
    meta = {"cronjobs.secret_keys": '["pin"]'}
    rows.job(status="dead", job_type="t.pay", payload=payload, meta=meta, last_error="declined", attempts=1)
    rows.attempt(1, "failed", error="declined", traceback="Traceback of it", error_type="Declined")
    page = words(of(site, "JobModel").change_view(request(ADA), "1"))
    assert "Job 1 (t.pay)" in page
    assert "4111" not in page
    assert "r0tated" not in page
    assert '"invoice": 7' in page
    assert "Traceback of it" in page
    assert "Save" not in page
    assert "Delete" not in page


def test_no_value_of_a_job_shows_a_secret_that_the_process_knows(
    site: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAY_API_KEY", 'sk-live-"1234567')
    said = 'refused: sk-live-"1234567'
    rows.job(
        status="dead", attempts=1, last_error=said, idempotency_key=said, concurrency_key=said, payload={"url": said}
    )
    rows.attempt(1, "failed", error=said, traceback=said)
    page = words(of(site, "JobModel").change_view(request(ADA), "1"))
    assert "sk-live" not in page
    assert page.count("refused: ***") >= 7, "each of these is still shown"


def test_the_reason_of_an_occurrence_is_on_the_clock_of_its_page(site: Any, rows: Rows) -> None:
    from django.utils import timezone  # type: ignore[import-untyped]

    number = rows.schedule("nightly")
    said = "overlap: the occurrence of 2026-07-01T11:03:07+00:00 stands for it"
    rows.occurrence(number, ago(hours=1), "skipped", reason=said)
    with timezone.override("Asia/Tokyo"):
        page = words(of(site, "ScheduleModel").change_view(request(BOB), str(number)))
    assert "the occurrence of 20:03:07 stands for it" in page


def test_no_text_of_a_row_reaches_a_page_with_control_characters(site: Any, rows: Rows) -> None:
    hostile = "x\x1b[31m\u202e\x85y"
    columns = ("job_type", "queue", "schedule", "enqueued_by", "last_error", "idempotency_key", "concurrency_key")
    rows.job(status="dead", attempts=1, payload={"a": hostile}, **dict.fromkeys(columns, hostile))
    rows.attempt(1, "failed", error=hostile, traceback=hostile, error_type=hostile)
    number = rows.schedule(hostile)
    rows.occurrence(number, ago(hours=1), job_id=1, reason=hostile)
    pages = (
        listed(site, BOB),
        words(of(site, "JobModel").change_view(request(ADA), "1")),
        words(of(site, "ScheduleModel").changelist_view(request(BOB))),
        words(of(site, "ScheduleModel").change_view(request(BOB), str(number))),
    )
    for page in pages:
        assert "x\\x1b[31m" in page
        assert not set(page) & set("\x1b\u202e\x85")


@pytest.mark.parametrize("number", ["9" * 5000, "[" * 5000 + "1" + "]" * 5000], ids=["long", "deep"])
def test_a_payload_that_cannot_be_read_hides_no_other_job(
    site: Any, rows: Rows, database: Database, number: str
) -> None:
    rows.job(status="dead", job_type="t.pay")
    rows.job(status="queued", job_type="t.other", payload={"invoice": 7})
    column_type = "" if database.is_sqlite else "::jsonb"
    with database.write() as connection:
        connection.exec_driver_sql(f"UPDATE cronjobs_jobs SET payload = '[{number}]'{column_type} WHERE id = 1")
    assert "t.other" in listed(site, BOB)
    assert "Payload: cannot be read" in words(of(site, "JobModel").change_view(request(ADA), "1"))
    from cronjobs.contrib.django.models import JobModel

    assert [job.payload for job in JobModel.objects.order_by("id")] == [None, {"invoice": 7}]
    assert JobModel.objects.filter(payload__invoice=7).values_list("payload__invoice", flat=True)[0] == 7


def test_a_number_of_which_nobody_wants_the_digits_hides_no_other_job(
    site: Any, rows: Rows, database: Database
) -> None:
    if database.is_sqlite:  # there it has as many bytes as the file says
        return
    rows.job(status="dead", job_type="t.pay")
    rows.job(status="dead", job_type="t.other", payload={"invoice": 7})
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE cronjobs_jobs SET payload = '{\"a\": 1e131071}' WHERE id = 1")
    assert "t.other" in listed(site, BOB)
    assert "Payload: cannot be read" in words(of(site, "JobModel").change_view(request(ADA), "1"))


def test_texts_that_are_not_utf8_hide_no_job(site: Any, rows: Rows, database: Database) -> None:
    if not database.is_sqlite:  # PostgreSQL takes none
        return
    from cronjobs.contrib.django.models import JobModel, ScheduleModel

    number = rows.schedule("nightly-report")
    rows.occurrence(number, ago(hours=1))
    for broken in ("CAST(x'ff4f' AS TEXT)", "x'ff4f'"):
        row = rows.job(status="dead", job_type="t.pay", attempts=1)
        rows.attempt(row, "failed")
        with database.write() as connection:
            for table, names in {
                "jobs": ["last_error", "enqueued_by", "result"],
                "job_runs": ["error", "traceback"],
            }.items():
                changes = ", ".join(f"{name} = {broken}" for name in names)
                key = "id" if table == "jobs" else "job_id"
                connection.exec_driver_sql(f"UPDATE cronjobs_{table} SET {changes} WHERE {key} = {row}")
        assert "\ufffdO" in listed(site, BOB, "q=t.pay")
        assert words(of(site, "JobModel").change_view(request(ADA), str(row))).count("\ufffdO") >= 4
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE cronjobs_schedules SET definition = CAST(x'ff4f' AS TEXT)")
        connection.exec_driver_sql("UPDATE cronjobs_occurrences SET reason = CAST(x'ff4f' AS TEXT)")
    admin = of(site, "ScheduleModel")
    assert "nightly-report active" in words(admin.changelist_view(request(BOB)))
    assert "\ufffdO" in words(admin.change_view(request(BOB), str(number)))
    same = JobModel.objects.filter(job_type__in=JobModel.objects.filter(pk=row).values("job_type"))
    assert same.count() == 2, "a subquery compares texts"
    assert list(ScheduleModel.objects.values_list("name", flat=True)) == ["nightly-report"]


def test_a_filter_for_what_no_column_can_hold_finds_nothing(site: Any, rows: Rows) -> None:
    rows.job(status="dead")
    for query in ("job_type=%00", "queue=a%00"):
        assert "0 jobs" in listed(site, BOB, query), query


def test_a_broken_file_hides_every_payload(site: Any, rows: Rows, tmp_path: Path) -> None:
    rows.job(status="dead", job_type="t.pay", payload={"card": "4111 1111"})
    (tmp_path / "cronjobs.yaml").write_text("job_types: [\n")
    assert "4111" not in words(of(site, "JobModel").change_view(request(ADA), "1"))


def test_retry_and_cancel_are_those_of_the_command_line(site: Any, rows: Rows, database: Database) -> None:
    for status in ("dead", "queued", "running", "succeeded"):
        rows.job(status=status)
    assert act(site, ADA, "retry", 1, 4) == [
        "1 queued again; 1 unchanged: their status does not allow this, or another transaction has locked them"
    ]
    assert act(site, ADA, "cancel", 2, 3) == ["1 cancelled; 1 running and asked to stop"]
    assert column(database, "status") == ["queued", "cancelled", "running", "succeeded"]
    assert [at is not None for at in column(database, "cancel_requested_at")] == [False, False, True, False]
    with database.read() as connection:
        audit = connection.execute(select(tables.audit.c.action, tables.audit.c.actor, tables.audit.c.subject)).all()
    assert [tuple(row) for row in audit] == [
        ("retry", "ada", "job 1"),
        ("cancel", "ada", "job 2"),
        ("cancel", "ada", "job 3"),
    ]


def test_a_job_that_an_unknown_effect_stopped_is_not_retried_before_somebody_settles_the_effect(
    site: Any, rows: Rows, database: Database
) -> None:
    rows.job(status="dead")
    rows.job(status="dead", error_type="EffectUnknown", last_error=str(EffectUnknown("invoice:7")))
    rows.put(tables.effects, key="invoice:7", job_id=2, attempt=1, state="stopped", begun_at=ago(minutes=9))
    [said] = act(site, ADA, "retry", 1, 2)
    assert said.startswith("1 queued again; job 2 unchanged: an effect stopped the job, and nobody has recorded")
    assert said.endswith('then type "cronjobs effects settle invoice:7 done" (or not-done)')
    assert column(database, "status") == ["queued", "dead"]
    with database.write() as connection:
        ledger.settle(connection, "invoice:7", None)
    assert act(site, ADA, "retry", 2) == ["1 queued again"]
    assert column(database, "status") == ["queued", "queued"]


def test_an_action_that_the_databases_role_may_not_do_is_answered_with_a_sentence(
    site: Any, rows: Rows, database_url: str, tmp_path: Path
) -> None:
    rows.job(status="dead")
    if database_url.startswith("sqlite"):
        return  # it has no roles
    for reader in configured(as_role(database_url, READ), "reader", by_runner=True):
        with override_settings(CRONJOBS={"config": tmp_path / "cronjobs.yaml", "database": reader}):
            [said] = act(site, ADA, "retry", 1)
    assert "permission denied" in said
    assert '"cronjobs db grants" prints' in said
    assert "(0 of 1 were changed)" in said


ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # SQLite has no roles


@ON_POSTGRESQL
@pytest.mark.parametrize(("role", "sees", "changed"), [(ENQUEUE, False, 0), (READ, True, 0), (RUN, True, 1)])
def test_the_role_read_is_enough_to_see_jobs_and_the_role_run_to_change_them(
    site: Any, rows: Rows, database_url: str, tmp_path: Path, role: str, sees: bool, changed: int
) -> None:
    rows.job(status="dead", job_type="t.pay")
    for alias in configured(as_role(database_url, role), "other", by_runner=True):
        with override_settings(CRONJOBS={"config": tmp_path / "cronjobs.yaml", "database": alias}):
            if not sees:
                with pytest.raises(ProgrammingError, match="permission denied"):
                    listed(site, ADA)
                return
            assert "t.pay dead" in listed(site, ADA)
            assert "Job 1 (t.pay)" in words(of(site, "JobModel").change_view(request(ADA), "1"))
            [said] = act(site, ADA, "retry", 1)
            assert said.startswith("1 queued again") == bool(changed)


def test_who_may_only_look_cannot_act_and_nobody_adds_deletes_or_edits(
    site: Any, rows: Rows, database: Database
) -> None:
    rows.job(status="dead")
    act(site, BOB, "retry", 1)
    assert column(database, "status") == ["dead"]
    jobs = of(site, "JobModel")
    assert list(jobs.get_actions(request(BOB))) == []
    assert list(jobs.get_actions(request(ADA))) == ["retry", "cancel"]
    for user in (ADA, BOB):
        asked, job = request(user), jobs.model.objects.get(pk=1)
        assert not jobs.has_add_permission(asked)
        assert not jobs.has_delete_permission(asked, job)
        assert not jobs.has_change_permission(asked, job)
        assert jobs.has_view_permission(asked, job)
    assert not jobs.has_view_permission(request(User("eve")), None)
    with pytest.raises(PermissionDenied):
        jobs.change_view(request(ADA, status="queued"), "1")
    assert column(database, "status") == ["dead"]


def test_a_schedule_shows_what_became_of_its_occurrences(site: Any, rows: Rows) -> None:
    number = rows.schedule("nightly-report")
    rows.job(status="succeeded")
    rows.occurrence(number, ago(hours=1), job_id=1)
    admin = of(site, "ScheduleModel")
    assert "nightly-report active" in words(admin.changelist_view(request(BOB)))
    page = words(admin.change_view(request(BOB), str(number)))
    assert "enqueued job 1" in page


def test_instants_are_djangos_and_can_be_asked_for(site: Any, rows: Rows) -> None:
    from cronjobs.contrib.django.models import JobModel, JobRunModel

    at = datetime(2026, 3, 1, 2, 15, 4, 123456, tzinfo=UTC)
    rows.job(status="queued", run_at=at)
    [job] = JobModel.objects.filter(run_at__gte=at, run_at__lt=at + timedelta(microseconds=1))
    assert job.run_at == at
    assert not JobModel.objects.filter(run_at__gt=at).exists()
    assert not JobModel.objects.filter(run_at__gt=datetime(2200, 1, 1, tzinfo=UTC)).exists()
    assert job.finished_at is None
    assert list(JobModel.objects.filter(finished_at=None, run_at__in=[at]).values_list("run_at", flat=True)) == [at]
    assert not JobRunModel.objects.filter(job=job).exists()
    assert str(job) == "job 1 (mail.send)"


def test_each_field_of_a_model_is_a_column(site: Any) -> None:
    from cronjobs.contrib.django import models

    for model in (models.JobModel, models.JobRunModel, models.ScheduleModel, models.OccurrenceModel):
        table = tables.metadata.tables[model._meta.db_table]
        assert {field.column for field in model._meta.concrete_fields if field.column} <= {*table.columns.keys()}
        assert not model.objects.exists()


def test_a_list_counts_no_further_than_somebody_turns_pages(
    site: Any, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cronjobs.contrib.django import admin

    monkeypatch.setattr(admin, "MOST_COUNTED", 2)
    for _ in range(5):
        rows.job(status="queued")
    assert "3 jobs" in listed(site, BOB)


# --- the pages --------------------------------------------------------------------------------------------------------


def with_pages(*, first: bool) -> None:
    """Make URL patterns: the admin, and our pages below it."""
    [admins] = urlpatterns
    pages = path("admin/jobs/", include("cronjobs.contrib.django.urls"))
    urlpatterns[:] = [pages, admins] if first else [admins, pages]
    clear_url_caches()


def test_the_index_of_the_admin_leads_to_the_pages_if_the_user_may_see_them(site: Any) -> None:
    call_command("migrate", "admin", verbosity=0)  # that page also shows the admin's log

    def index(user: User) -> str:
        return str(site.index(request(user), {"user": user}).rendered_content)

    assert "what each schedule did" not in index(ADA)
    with_pages(first=True)
    assert '<a href="/admin/jobs/">Jobs: what is wrong' in index(ADA)
    assert '<a href="/admin/jobs/">Jobs: what is wrong' in index(BOB)
    assert "Site administration" in index(EVE)
    assert "what each schedule did" not in index(EVE)
    with override_settings(FORCE_SCRIPT_NAME="/shop"):
        assert "what each schedule did" not in index(EVE)


def test_the_index_of_the_admin_asks_the_rule_of_the_view(site: Any) -> None:
    call_command("migrate", "admin", verbosity=0)
    by_name = pages(may_see=lambda request: request.user.get_username() == "eve")
    urlpatterns.insert(0, re_path(r"^admin/jobs/(?P<path>.*)$", by_name, name="cronjobs"))
    clear_url_caches()
    for user, sees in ((EVE, True), (ADA, False)):
        html = str(site.index(request(user), {"user": user}).rendered_content)
        assert ("what each schedule did" in html) is sees
    assert by_name(request(ADA)).status_code == 403


def test_a_user_who_is_logged_in_and_may_not_see_the_pages_is_told_what_is_missing(site: Any) -> None:
    refused = pages()(request(EVE))
    assert refused.status_code == 403
    assert "eve may not see these pages. In Django's admin, give the user the permission" in words(refused)
    refused = pages(may_see=lambda _: False)(request(EVE))
    assert words(refused).endswith("eve may not see these pages.")


def test_djangos_check_warns_of_pages_behind_the_admin(site: Any) -> None:
    """The last pattern of the admin takes every address below its own."""
    assert pages_are_reached(None) == []
    with_pages(first=True)
    assert pages_are_reached(None) == []
    with override_settings(FORCE_SCRIPT_NAME="/shop"):
        assert pages_are_reached(None) == []
    urlpatterns.reverse()
    clear_url_caches()
    [warning] = pages_are_reached(None)
    assert warning.id == "cronjobs.W003"
    assert "matches /admin/jobs/ first" in warning.msg
    assert "before" in warning.hint
