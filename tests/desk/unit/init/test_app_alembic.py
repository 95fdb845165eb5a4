"""The app's own alembic: where its env.py is, which filter protects our tables, and what ``init`` writes into it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import alembic
from cronjobs.desk.init.app_alembic import env_files, filters, unfiltered, with_filter

pytestmark = pytest.mark.either

ROOT = Path(__file__).parents[4]
TEMPLATES = Path(alembic.__file__).parent / "templates"

ENV_PY = """
from alembic import context
from cronjobs.autogenerate import include_object
context.configure(connection=None, include_object=include_object)
"""


@pytest.mark.parametrize(
    ("source", "filtered"),
    [
        (ENV_PY, True),
        (ENV_PY.replace("from cronjobs", "# from cronjobs"), False),
        (ENV_PY.replace(", include_object=include_object", ""), False),
        ("context.configure(include_name=lambda n, k, p: not (n or '').startswith('cronjobs_'))", True),
        ("opts = {'include_object': cronjobs.autogenerate.include_object}\nimport cronjobs.autogenerate", True),
        ("def broken(:", False),
        ("", False),
    ],
)
def test_an_env_py_is_read_not_run(source: str, filtered: bool) -> None:
    assert filters(source) is filtered


def test_alembic_is_found_in_the_project_above_it_and_below_it(tmp_path: Path) -> None:
    project = tmp_path / "repo" / "app" / "jobs"
    for place, location in (
        (tmp_path / "repo", "%(here)s/db"),
        (project, "migrations"),
        (project / "below", None),
        (project / "venv", None),
        (tmp_path, None),
    ):
        env = place / (location or "alembic").replace("%(here)s/", "") / "env.py"
        env.parent.mkdir(parents=True)
        env.write_text(ENV_PY if place == project else "")
        line = "" if location is None else f"script_location = {location}"
        (place / "alembic.ini").write_text(f"[alembic]\n{line}\nsqlalchemy.url = %broken\n")
    (tmp_path / "repo" / ".git").mkdir()
    found = env_files(project)
    shown = [(str(each.path.relative_to(tmp_path)), each.filtered) for each in found]
    assert shown == [
        ("repo/app/jobs/below/alembic/env.py", False),
        ("repo/app/jobs/migrations/env.py", True),
        ("repo/db/env.py", False),
    ]
    assert env_files(ROOT) == []  # our own migrations are not an app's


def test_flask_migrate_and_pyproject_name_their_folder_in_other_ways(tmp_path: Path) -> None:
    for env in ("migrations/env.py", "db/env.py"):
        (tmp_path / env).parent.mkdir()
        (tmp_path / env).write_text("")
    (tmp_path / "migrations/alembic.ini").write_text("[alembic]\n")  # Flask-Migrate's names no script_location
    (tmp_path / "pyproject.toml").write_text('[tool.alembic]\nscript_location = "%(here)s/db"\n')
    assert [each.path.parent.name for each in env_files(tmp_path)] == ["db", "migrations"]
    for broken in ("[tool.alembic", "[tool]\nalembic = 3\n# [tool.alembic"):
        (tmp_path / "pyproject.toml").write_text(broken)
        assert [each.path.parent.name for each in env_files(tmp_path)] == ["migrations"]


@pytest.mark.parametrize("template", ["generic", "async", "pyproject", "pyproject_async"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_alembics_own_templates_get_the_filter_in_each_call_and_keep_all_else(template: str, newline: str) -> None:
    source = (TEMPLATES / template / "env.py").read_text().replace("# add", "# é: add").replace("\n", newline)
    edited = with_filter(source)
    assert edited is not None
    assert filters(edited)
    assert not filters(source)
    calls = [
        {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for node in ast.walk(ast.parse(edited))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "context.configure"
    ]
    assert [call["include_object"] for call in calls] == ["include_object"] * 2
    added = f"from cronjobs.autogenerate import include_object{newline}"
    assert edited.replace(added, "").replace(", include_object=include_object", "") == source
    assert with_filter(edited) is None  # never twice


FLASK_MIGRATE = """
from flask import current_app
from alembic import context

def run_migrations_online():
    conf_args = current_app.extensions['migrate'].configure_args
    if conf_args.get("process_revision_directives") is None:
        conf_args["process_revision_directives"] = None
    with get_engine().connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=get_metadata(),
            **conf_args
        )
"""


def test_flask_migrate_gets_it_among_its_own_arguments() -> None:
    edited = with_filter(FLASK_MIGRATE)
    assert edited is not None
    assert filters(edited)
    assert 'configure_args\n    conf_args.setdefault("include_object", include_object)\n    if' in edited


SIMPLE = "from alembic import context\ncontext.configure(connection=None, target_metadata=None)\n"


@pytest.mark.parametrize(
    "source",
    [
        (TEMPLATES / "multidb" / "env.py").read_text().replace("target_metadata=", "metadata="),
        SIMPLE.replace("None)", "None, include_object=mine)"),
        SIMPLE.replace("None)", "None, include_name=mine)"),
        SIMPLE.replace("None)", "None, **options)"),
        FLASK_MIGRATE.replace("current_app.extensions['migrate'].configure_args", "{}"),
        SIMPLE.replace(", target_metadata=None", ""),
        SIMPLE.replace("from alembic import context", "import alembic.context as context"),
        SIMPLE.replace("connection=None", "None"),
        SIMPLE + "context.configure(url=None)\n",
        SIMPLE + "def include_object(*_): return True\n",
        "from alembic import context\n",
        "def broken(:",
    ],
)
def test_what_somebody_wrote_otherwise_is_left_alone(source: str) -> None:
    assert with_filter(source) is None


def test_an_env_py_that_is_not_utf8_is_left_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "alembic").mkdir()
    (tmp_path / "alembic.ini").write_text("[alembic]\n")
    (tmp_path / "alembic/env.py").write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + SIMPLE.encode())
    [env] = env_files(tmp_path)
    assert with_filter(env.source) is None, "its bytes would be written back as others"


def test_the_simplest_env_py_is_not_what_keeps_the_others_out() -> None:
    assert with_filter(SIMPLE) is not None


def test_what_is_said_of_an_env_py_without_a_filter(tmp_path: Path) -> None:
    (tmp_path / "alembic").mkdir()
    (tmp_path / "alembic.ini").write_text("[alembic]\n")
    env = tmp_path / "alembic/env.py"
    env.write_text(SIMPLE)
    said = unfiltered(tmp_path, schema=None)
    assert said is not None
    assert said.startswith(f"{env}: ")
    assert "from cronjobs.autogenerate import include_object" in said
    # Autogenerate sees other schemas only if it is told to look there.
    assert unfiltered(tmp_path, schema="jobs") is None
    env.write_text(SIMPLE.replace("None)", "None, include_schemas=True)"))
    assert unfiltered(tmp_path, schema="jobs") == said
    env.write_text(with_filter(SIMPLE) or "")
    assert unfiltered(tmp_path, schema=None) is None
