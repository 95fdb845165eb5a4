"""SQLAlchemy and YAML without what is hardly used, until somebody uses it: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEFT_OUT = """
import sys
from cronjobs import stand_ins
stand_ins.import_libraries()
with stand_ins.left_out():
    import sqlalchemy.dialects.sqlite
"""
NOT_LOADED = """
assert not {"_hashlib", "ssl", *stand_ins.NAMES} & {*sys.modules}
"""
ERRORS = """
from sqlalchemy import util
assert not util.is_exit_exception(ValueError()) and util.is_exit_exception(KeyboardInterrupt())
"""
USED_BY_SQLALCHEMY = """
import importlib
from sqlalchemy.util import compat, langhelpers
assert importlib.metadata.version("pytest")
assert langhelpers.md5_hex("x") == "9dd4e461268c8034f5c8564e155c67a6"
assert [*compat.importlib_metadata_get("console_scripts")]
from asyncio import CancelledError
assert util.is_exit_exception(CancelledError())
"""
USED_BY_OTHERS = """
import asyncio.events, hashlib, importlib
from asyncio import CancelledError
from importlib import metadata
from sqlalchemy import text, util
assert asyncio is sys.modules["asyncio"] and CancelledError is asyncio.exceptions.CancelledError
assert not any(isinstance(found, stand_ins.StandIn) for found in [*sys.modules.values(), metadata, importlib.metadata])
assert metadata is importlib.metadata is sys.modules["importlib.metadata"]
assert not hasattr(importlib, "never")
from sqlalchemy.ext.asyncio import create_async_engine
async def one():
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection:
        found = await connection.scalar(text("SELECT 1"))
    await engine.dispose()
    return found
assert asyncio.run(one()) == 1
assert util.concurrency.asyncio.iscoroutine(last := one())
last.close()
"""
LOADED_MEANWHILE = """
import sys
from cronjobs import stand_ins
stand_ins.import_libraries()
with stand_ins.left_out():
    import psycopg, psycopg.errors
    from sqlalchemy import create_engine
    create_engine("postgresql+psycopg://")
assert "sqlalchemy.dialects.postgresql.asyncpg" not in sys.modules
import asyncio
import sqlalchemy.dialects.postgresql.psycopg2 as one
from sqlalchemy.dialects.postgresql import asyncpg as another, dialect
assert psycopg.errors.CancelledError is asyncio.CancelledError
assert (one.dialect.driver, another.dialect.driver) == ("psycopg2", "asyncpg")
assert not isinstance(another, stand_ins.StandIn)
"""
LOADED_BEFORE = """
import sys, asyncio, hashlib, importlib.metadata
before = asyncio, hashlib, importlib.metadata
from cronjobs import stand_ins
stand_ins.import_libraries()
from sqlalchemy.util import compat, queue
assert (queue.asyncio, compat.hashlib, compat.importlib_metadata) == before
assert "__getattr__" not in vars(importlib)
"""
YAML = """
import copy, datetime, re
from cronjobs import stand_ins
from cronjobs.patterns import _Late
usual = re.compile
stand_ins.import_libraries()
assert re.compile is usual
import yaml
assert isinstance(yaml.reader.Reader.NON_PRINTABLE, _Late)
text = "[1, 1.5, yes, 2026-01-02, ~, 0x1F, '1', 1:30, 2026-01-02 03:04:05]"
then = datetime.datetime(2026, 1, 2, 3, 4, 5)
for loader in (yaml.SafeLoader, yaml.CSafeLoader):
    assert yaml.load(text, loader) == [1, 1.5, True, then.date(), None, 31, "1", 90, then]
    copy.deepcopy(loader.yaml_implicit_resolvers)
assert yaml.safe_load(yaml.safe_dump([1, "1", "yes", then])) == [1, "1", "yes", then]
"""
ELSEWHERE = """
import sys, sqlalchemy
from cronjobs import stand_ins
stand_ins.import_libraries()
with stand_ins.left_out():
    import sqlalchemy.dialects.sqlite, importlib.metadata
assert {"sqlalchemy.dialects.sqlite.aiosqlite", "asyncio"} <= {*sys.modules}
assert not any(isinstance(found, stand_ins.StandIn) for found in sys.modules.values())
assert isinstance(importlib.metadata, type(sys)) and not isinstance(importlib.metadata, stand_ins.StandIn)
"""
ENDED = (
    LEFT_OUT
    + """
from cronjobs.config.settings import Settings
from cronjobs.jobs import job_types
from pathlib import Path
assert job_types.import_handlers(Settings(Path("cronjobs.yaml"), Path())) == []
with stand_ins.left_out():  # in some thread, while handlers import what they like
    import asyncio
    assert not isinstance(asyncio, stand_ins.StandIn)
"""
)


@pytest.mark.parametrize(
    "program",
    [
        LEFT_OUT + NOT_LOADED + ERRORS + NOT_LOADED + USED_BY_SQLALCHEMY,
        LEFT_OUT + NOT_LOADED + USED_BY_OTHERS,
        LOADED_MEANWHILE,
        LOADED_BEFORE,
        YAML,
        ELSEWHERE,
        ENDED,
    ],
    ids=["used by SQLAlchemy", "used by others", "loaded meanwhile", "loaded before", "YAML", "elsewhere", "ended"],
)
def test_what_stands_in_for_a_module_is_that_module_to_whoever_uses_it(program: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
