"""procrastinate. The measured process is ``procrastinate worker --one-shot``."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector  # type: ignore[import-not-found]
from verbs import URL, one_by_one, serve, timed

app = App(connector=PsycopgConnector(conninfo=URL))


def registered(on: App) -> object:
    from seen import anoop

    return on.task(name="noop")(anoop)


registered(app)


def setup() -> None:
    with opened() as on:
        on.schema_manager.apply_schema()


def opened() -> App:
    return App(connector=SyncPsycopgConnector(conninfo=URL)).open()


def fill(count: int) -> None:
    with opened() as on:
        on.connector.execute_query("TRUNCATE procrastinate_jobs, procrastinate_events CASCADE")
        if count:
            task(on).batch_defer(*({"n": n} for n in range(count)))


def task(on: App) -> App:
    return on.configure_task("noop")


def left() -> int:
    with opened() as on:
        query = "SELECT count(*) AS n FROM procrastinate_jobs WHERE status <> 'succeeded'"
        return int(on.connector.execute_query_one(query)["n"])


def single(count: int) -> float:
    with opened() as on:
        return one_by_one(lambda n: task(on).defer(n=n))(count)


def bulk(count: int) -> float:
    with opened() as on:
        return timed(lambda: task(on).batch_defer(*({"n": n} for n in range(count))))


if __name__ == "__main__":
    serve(setup=setup, fill=fill, left=left, single=single, bulk=bulk)
