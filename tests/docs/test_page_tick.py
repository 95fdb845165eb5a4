"""docs/explanation/tick.md: its hook is the tested one. test_left_behind.py tests its table."""

from __future__ import annotations

from support.pages import Page
from support.ticking import Project

PAGE = Page("docs/explanation/tick.md")
HANDLERS = """
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sessions import Session, engine

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]

Base.metadata.create_all(engine)

@job("shop.forgets", retry=RetryPolicy(max_attempts=1))
def forgets():
    Session.add(Order(what="lost"))

@job("shop.raises", retry=RetryPolicy(max_attempts=1))
def raises():
    Session.add(Order(what="lost"))
    Session.flush()
    raise ValueError("no such customer")

@job("shop.pays", retry=RetryPolicy(max_attempts=1))
def pays():
    Session.add(Order(what="paid"))
    Session.commit()
    return Session.query(Order).count()
"""


def test_the_hook_of_the_page_keeps_a_session_from_the_next_job(sqlite_project: Project) -> None:
    project = sqlite_project.configure("run: {workers: 1}\n", HANDLERS)
    sessions = PAGE.block("python", "# sessions.py").replace("sqlite:///shop.db", f"sqlite:///{project.folder}/shop.db")
    (project.folder / "sessions.py").write_text(sessions)
    names = ("shop.forgets", "shop.pays", "shop.raises", "shop.pays")
    job_ids = [project.add(name) for name in names]
    assert project.tick().wait() == 1
    jobs = [project.job(job_id) for job_id in job_ids]
    assert [job["status"] for job in jobs] == ["dead", "succeeded", "dead", "succeeded"]
    assert jobs[0]["last_error"] == "the handler did not commit its session"
    assert jobs[2]["last_error"] == "no such customer"
    assert [jobs[1]["result"], jobs[3]["result"]] == ["1", "2"]


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {"python": 1}
    assert PAGE.dead_links() == []
