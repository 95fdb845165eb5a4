"""Write docs/reference/ from the code, or with --check compare it: exit 1, and a line for each page that differs.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from cronjobs.config import environment
from cronjobs.config.reference import Section, sections

REFERENCE = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Made by docs/generate.py from the code. Do not edit: run `python docs/generate.py`. -->"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- configuration.md -------------------------------------------------------------------------------------------------

CONFIGURATION = """# Every key of cronjobs.yaml

The file lies beside your code. Durations have a unit: `55s`, `10m`, `24h`, `7d`, `1h30m`. Sizes: `512MiB`, `2GiB`.
`${NAME}`, `${NAME:-default}` and `${file:/run/secrets/x}` are filled in in every value; `$${` is a plain `${`. A path
is meant from the file's folder. A bad entry disables only itself; `cronjobs check` lists what is wrong.

`cronjobs config show` prints what holds here and where each value comes from; `cronjobs schema` prints the same tables
as JSON Schema, for editors. In *default*, code is a value as you would write it."""


def _is_value(section: Section, name: str) -> bool:
    return not next(row for row in section.rows if row.name == name).key.unset


def configuration() -> str:
    parts = [CONFIGURATION]
    for section in sections():
        title = "The file" if section.paths == ("",) else " and ".join(code(path) for path in section.paths)
        rows = (
            (
                code(row.name),
                cell(row.key.reader.words),
                code(row.default) if _is_value(section, row.name) else cell(row.default),
                code(row.key.example),
                cell(row.key.sentence),
            )
            for row in section.rows
        )
        parts.append(f"## {title}\n\n{table(('key', 'type', 'default', 'example', 'what it decides'), rows)}")
    parts.append(
        "## Variables of the environment\n\nThese are read:\n\n"
        + table(("variable", "what it decides"), ((code(n), cell(s)) for n, s in environment.READ.items()))
        + "\n\nThese are given to commands (`command:`), as far as they apply:\n\n"
        + table(("variable", "what it holds"), ((code(n), cell(s)) for n, s in environment.GIVEN.items()))
    )
    return "\n\n".join(parts)


# --- all pages --------------------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {"configuration.md": configuration}


def text_of(page: str) -> str:
    return f"{NOTE}\n\n{PAGES[page]()}\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    differing = 0
    REFERENCE.mkdir(exist_ok=True)
    for page in PAGES:
        file, text = REFERENCE / page, text_of(page)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments:
            print(f"docs/reference/{page} is not what the code says: run python docs/generate.py")
            differing = 1
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote docs/reference/{page}")
    return differing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
