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
assert not {"ssl", "asyncio.sslproto", "ctypes.util", "importlib.metadata", "email"} & {*sys.modules}
assert psycopg.errors.CancelledError is asyncio.CancelledError
assert (one.dialect.driver, another.dialect.driver) == ("psycopg2", "asyncpg")
assert not isinstance(another, stand_ins.StandIn)
"""
USED_BY_PSYCOPG = (
    LOADED_MEANWHILE
    + """
import asyncio.base_events, ctypes, importlib.metadata, psycopg_binary
from psycopg.pq import misc
assert psycopg.__version__ == importlib.metadata.version("psycopg")
assert psycopg_binary.__version__ == importlib.metadata.version("psycopg-binary")
assert misc.ctypes.util.find_library is ctypes.util.find_library
assert asyncio.sslproto.SSLProtocol is asyncio.base_events.sslproto.SSLProtocol
async def encrypted():
    async def greet(reader, writer):
        writer.write(b"no handshake of yours")
        writer.close()
        await writer.wait_closed()
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=ssl.create_default_context())
import ssl
try:
    asyncio.run(encrypted())
except ssl.SSLError:
    pass
else:
    sys.exit("it was not encrypted")
import sqlalchemy
from sqlalchemy.dialects.postgresql import base, pg_catalog
assert base.pg_catalog.pg_class is pg_catalog.pg_class
assert isinstance(pg_catalog.pg_class, sqlalchemy.Table)
try:
    asyncio.never
except AttributeError as error:
    assert str(error) == "module 'asyncio' has no attribute 'never'"
"""
)
VERSIONS = """
import sys, pathlib, tempfile, importlib.metadata
from cronjobs.stand_ins import version_of
with tempfile.TemporaryDirectory() as folder:
    first, second, third = [pathlib.Path(folder, str(n)) for n in range(3)]
    sys.path[:0] = [str(first / "archive.zip"), str(first), str(second), str(third)]
    for place, name, version in [
        (second, "one_thing-2.0.dist-info", "2.0"),
        (third, "one_thing-3.0.dist-info", "3.0"),
        (first, "two-1.dist-info", "1"),
        (first, "two-1.1.egg-info", "1.1"),
        (second, "Three-4.dist-info", "4"),
        (second, "four-5.egg-info", "5"),
        (third, "four-6.dist-info", "6"),
    ]:
        (place / name).mkdir(parents=True)
        text = f"Metadata-Version: 2.1\\nName: {name.partition('-')[0]}\\nVersion: {version}\\n"
        (place / name / ("METADATA" if name.endswith("dist-info") else "PKG-INFO")).write_text(text)
    assert version_of("one-thing") == "2.0"
    for name in ("one-thing", "two", "three", "four", "pytest"):
        assert version_of(name) == importlib.metadata.version(name), name
    try:
        version_of("never")
    except importlib.metadata.PackageNotFoundError:
        sys.exit(0)
    sys.exit("found what is not there")
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
        USED_BY_PSYCOPG,
        VERSIONS,
        LOADED_BEFORE,
        YAML,
        ELSEWHERE,
        ENDED,
    ],
    ids=[
        "used by SQLAlchemy",
        "used by others",
        "loaded meanwhile",
        "used by psycopg",
        "versions",
        "loaded before",
        "YAML",
        "elsewhere",
        "ended",
    ],
)
def test_what_stands_in_for_a_module_is_that_module_to_whoever_uses_it(program: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
