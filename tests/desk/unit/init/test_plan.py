"""What ``init`` writes, asks and prints in each kind of project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.configfile import read

from cronjobs.desk.init.app_alembic import EnvFile
from cronjobs.desk.init.app_files import AppPackage, DjangoProject
from cronjobs.desk.init.plan import Choices, InitPlan, next_question, plan
from cronjobs.desk.init.surroundings import LEFT_BEHIND, DatabaseVariable, DotEnv, Surroundings

pytestmark = pytest.mark.either

EMPTY = Surroundings(project="shop", timezone="UTC")
SRC = AppPackage("shop", "src", frozenset({"__init__", "main"}))
POSTGRESQL = DatabaseVariable("DATABASE_URL")
APP = replace(EMPTY, dotenv=DotEnv((POSTGRESQL,)), package=SRC, dependencies=frozenset({"fastapi", "sqlalchemy"}))
ENV_PY = EnvFile(
    Path("/srv/shop/migrations/env.py"),
    "from alembic import context\ncontext.configure(connection=None, target_metadata=None)\n",
)


def planned(around: Surroundings, chosen: Choices | None = None, *, edit: bool = False) -> InitPlan:
    return plan(around, (chosen or Choices()).without_asking(edit=edit))


def asked(around: Surroundings, *answers: bool) -> list[str]:
    """The subjects of the questions that come if the earlier ones are answered with *answers*."""
    chosen = Choices()
    about: list[str] = []
    for answer in answers:
        question = next_question(around, chosen)
        if question is None:
            break
        about.append(question.about)
        chosen = replace(chosen, **{question.about: answer})
    return about


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with all that a plan may name."""
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("DATABASE_URL=postgresql://app:s3cret@db/shop\n")
    Path("src").mkdir()


def test_in_an_empty_folder_nothing_is_found_or_asked() -> None:
    found = planned(EMPTY)
    assert list(found.files) == ["cronjobs.yaml", "jobs.py", "cronjobs.schema.json"]
    assert (found.found, found.then, found.edits, found.ignore) == ((), (), {}, ())
    assert found.makes_tables
    assert found.commands == ("cronjobs check", "cronjobs run-due", "cronjobs crontab install")
    assert asked(EMPTY, True, True, True) == []


@pytest.mark.parametrize("project", ["s", "shop", "a-shop-with-a-long-name"])
def test_the_comments_of_the_settings_stand_below_each_other(project: str) -> None:
    django = DjangoProject("shop.settings", "db.sqlite3")
    for around in (EMPTY, replace(APP, django=django)):
        lines = planned(replace(around, project=project)).files["cronjobs.yaml"].splitlines()
        columns = {line.index(" # ") for line in lines[5 : lines.index("")] + lines[5:15] if " # " in line}
        assert len(columns) == 1


def test_an_app_on_postgresql_gets_three_commands_and_a_handler_in_its_package() -> None:
    found = planned(APP)
    assert list(found.files) == ["cronjobs.yaml", "src/shop/jobs.py", "cronjobs.schema.json"]
    settings = read(found.files["cronjobs.yaml"])
    assert settings.problems == ()
    assert settings.database == "postgresql://app:s3cret@db/shop"
    assert settings.imports == ("shop.jobs",)
    assert [path.name for path in settings.python_path] == ["src"]
    assert found.commands == ("cronjobs db upgrade", "cronjobs check", "cronjobs crontab install")
    assert not found.makes_tables
    assert "DATABASE_URL in .env: the jobs are kept in that database, beside your own tables" in found.found
    assert "src/shop is the app's package: the first handler is src/shop/jobs.py" in found.found
    assert found.then[-2:] == ("  from shop.jobs import hello", '  hello.enqueue(session, name="Ada")   # you commit')


def test_without_the_driver_it_is_the_first_thing_to_install() -> None:
    found = planned(replace(APP, has_postgresql_driver=False))
    assert found.commands[0] == "pip install 'cronjobs[postgres]'"
    assert planned(replace(EMPTY, has_postgresql_driver=False)).commands[0] == "cronjobs check"


def test_a_url_that_only_the_shell_has_is_used_and_said_not_to_reach_cron() -> None:
    around = replace(EMPTY, shell=(POSTGRESQL,))
    found = planned(around)
    assert found.files[".env"].endswith("#DATABASE_URL=\n")
    assert found.private == {".env"}
    assert found.commands[:2] == ('echo "DATABASE_URL=$DATABASE_URL" >> .env', "cronjobs db upgrade")
    assert "for cron, set the variable in .env, too" in "\n".join(found.found)
    text = yaml.safe_load(found.files["cronjobs.yaml"])
    assert (text["env_file"], text["database"]) == (".env", "${DATABASE_URL}")
    # What is there stays: a line is added to it.
    there = planned(replace(around, dotenv=DotEnv()))
    assert ".env" not in there.files
    assert there.commands == ("echo >> .env; " + found.commands[0], *found.commands[1:])


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ((DatabaseVariable("SHOP_DATABASE_URL"),), "SHOP_DATABASE_URL"),
        ((DatabaseVariable("DATABASE_URL"), DatabaseVariable("OTHER_DATABASE_URL")), "DATABASE_URL"),
        ((DatabaseVariable("A_DATABASE_URL", why_not="no"), DatabaseVariable("B_DATABASE_URL")), "B_DATABASE_URL"),
        ((DatabaseVariable("A_DATABASE_URL"), DatabaseVariable("B_DATABASE_URL")), None),
        ((DatabaseVariable("DATABASE_URL", why_not="cronjobs does not run on mysql://"),), None),
        ((), None),
    ],
)
def test_which_variable_is_the_jobs_database(variables: tuple[DatabaseVariable, ...], used: str | None) -> None:
    found = planned(replace(EMPTY, dotenv=DotEnv(variables)))
    text = yaml.safe_load(found.files["cronjobs.yaml"])
    assert text["database"] == (f"${{{used}}}" if used else "sqlite:///cronjobs.db")
    assert text["env_file"] == ".env"
    assert any("their own file" in line for line in found.found) is (used is None)
    for variable in variables if used is None else ():
        assert any(variable.name in line for line in found.found)


def test_an_env_file_that_cannot_be_read_is_not_used_and_named() -> None:
    found = planned(replace(EMPTY, dotenv=DotEnv(problem="line 3: this is not KEY=value"), shell=(POSTGRESQL,)))
    assert "env_file" not in yaml.safe_load(found.files["cronjobs.yaml"])
    assert found.found[0] == ".env cannot be the env_file: line 3: this is not KEY=value"
    assert found.makes_tables


def test_who_says_no_gets_a_file_of_their_own_and_no_question_about_alembic() -> None:
    around = replace(APP, alembic=(ENV_PY,))
    assert asked(around, True, True, True, True) == ["app_database", "in_package", "filter_alembic"]
    assert asked(around, False, False, False) == ["app_database", "in_package"]
    found = planned(around, Choices(app_database=False, in_package=False))
    assert "jobs.py" in found.files
    assert found.makes_tables
    assert not any("alembic" in line for line in found.found)
    assert "python_path" not in yaml.safe_load(found.files["cronjobs.yaml"])
    assert "with connect() as connection:" in "\n".join(found.then)


def test_alembics_env_py_is_edited_only_if_someone_said_so() -> None:
    around = replace(APP, alembic=(ENV_PY,))
    told = planned(around)
    assert told.edits == {}
    lines = "\n".join(told.found)
    assert "migrations/env.py: alembic's autogenerate would drop the tables of cronjobs" in lines
    assert "from cronjobs.autogenerate import include_object" in lines
    assert "include_object=include_object" in lines
    edited = planned(around, edit=True)
    assert list(edited.edits) == [ENV_PY.path]
    assert "include_object=include_object" in edited.edits[ENV_PY.path]
    assert "alembic" not in "\n".join(edited.found)
    # Refused on a terminal, or not one of the templates.
    assert planned(around, Choices(filter_alembic=False), edit=True).edits == {}
    strange = replace(APP, alembic=(EnvFile(ENV_PY.path, "import alembic"),))
    assert asked(strange, True, True, True) == ["app_database", "in_package"]
    assert planned(strange, edit=True).edits == {}
    assert "add these two lines" in "\n".join(planned(strange, edit=True).found)
    done = replace(APP, alembic=(EnvFile(ENV_PY.path, edited.edits[ENV_PY.path]),))
    assert "alembic" not in "\n".join(planned(done).found)


def test_django_is_set_up_and_its_settings_name_the_database() -> None:
    django = DjangoProject("shop.settings", "db.sqlite3")
    found = planned(replace(EMPTY, django=django, package=AppPackage("shop", "", frozenset({"settings"}))))
    text = yaml.safe_load(found.files["cronjobs.yaml"])
    assert (text["setup"], text["env"]) == ("django.setup", {"DJANGO_SETTINGS_MODULE": "shop.settings"})
    assert text["database"] == "django"
    assert "# the app's own: the database in Django's settings, db.sqlite3\n" in found.files["cronjobs.yaml"]
    assert not found.makes_tables  # that would import the settings
    assert found.commands[0] == "cronjobs db upgrade"
    assert any("INSTALLED_APPS" in said for said in found.found)
    with_app = planned(replace(EMPTY, django=replace(django, has_cronjobs=True)))
    assert with_app.commands[0] == "python manage.py migrate"
    assert not any("INSTALLED_APPS" in said for said in with_app.found)
    assert text["imports"] == ["shop.jobs"]
    assert "  with transaction.atomic():" in found.then
    elsewhere = planned(replace(EMPTY, django=replace(django, sqlite=None), has_postgresql_driver=False))
    assert yaml.safe_load(elsewhere.files["cronjobs.yaml"])["database"] == "django"
    assert elsewhere.commands[:2] == ("pip install 'cronjobs[postgres]'", "cronjobs db upgrade")
    own = replace(EMPTY, django=django, dotenv=DotEnv((POSTGRESQL,)))
    assert yaml.safe_load(planned(own).files["cronjobs.yaml"])["database"] == "${DATABASE_URL}"


@pytest.mark.parametrize(
    ("names", "variable", "last"),
    [
        ({"fastapi"}, POSTGRESQL, 'hello.enqueue(session, name="Ada")'),
        ({"fastapi"}, replace(POSTGRESQL, is_async=True), 'await hello.enqueue_async(session, name="Ada")'),
        ({"fastapi", "asyncpg"}, POSTGRESQL, 'await hello.enqueue_async(session, name="Ada")'),
        ({"flask"}, POSTGRESQL, 'hello.enqueue(session, name="Ada")'),
        ({"flask", "flask-sqlalchemy"}, POSTGRESQL, 'hello.enqueue(db.session, name="Ada")'),
    ],
)
def test_the_snippet_is_that_of_the_framework(names: set[str], variable: DatabaseVariable, last: str) -> None:
    found = planned(replace(APP, dependencies=frozenset(names), dotenv=DotEnv((variable,))))
    assert found.then[-1].strip().startswith(last)


def test_a_module_that_the_app_has_is_not_overwritten() -> None:
    taken = replace(APP, package=replace(SRC, modules=frozenset({"jobs"})))
    found = planned(taken)
    assert "src/shop/cron_jobs.py" in found.files
    assert (
        "src/shop is the app's package: the first handler is src/shop/cron_jobs.py, "
        'because the module name "jobs" is taken'
    ) in found.found
    assert yaml.safe_load(found.files["cronjobs.yaml"])["imports"] == ["shop.cron_jobs"]


def test_what_git_does_not_ignore_is_added_where_it_is_left() -> None:
    all_ = frozenset(LEFT_BEHIND)
    assert planned(replace(EMPTY, unignored=all_)).ignore == ("cronjobs.db*", "cronjobs.log*")
    assert planned(replace(APP, unignored=all_)).ignore == ("cronjobs.log*",)
    assert planned(replace(EMPTY, unignored=all_, shell=(POSTGRESQL,))).ignore == ("cronjobs.log*", ".env")
    assert planned(replace(EMPTY, unignored=frozenset())).ignore == ()
    django = replace(EMPTY, unignored=all_, django=DjangoProject("shop.settings", "db.sqlite3"))
    assert planned(django).ignore == ("*.sqlite3-*", "cronjobs.log*")


def test_a_crontab_that_is_there_is_mentioned() -> None:
    [said] = planned(replace(EMPTY, crontab_lines=12)).found
    assert said.startswith("your crontab has 12 lines: ")
    assert "cronjobs crontab import" in said
    assert "cronjobs crontab wrap" in said
