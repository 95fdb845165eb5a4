"""What mkdocs does not do itself: README.md is the home page, links that leave docs/ lead to copies, and llms.txt.

The pages are read in the repository, too, where such links are relative paths. On the site they would be dead.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
COPIES = "source"  # the folder of the site that holds copies


def on_files(files: Files, config: Any) -> Files:
    """Add a copy of each file outside docs/ that a page links to."""
    pages = [(file.src_uri, Path(str(file.abs_src_path))) for file in files.documentation_pages()]
    for uri, path in pages:
        for found in LINK.finditer(text_of(uri, path.read_text(encoding="utf-8"))):
            target = in_repository(uri, found["target"])
            if target and not target.startswith("docs/") and (ROOT / target).is_file():
                copy = f"{COPIES}/{target}.txt"
                if files.get_file_from_path(copy) is None:
                    files.append(File.generated(config, copy, content=(ROOT / target).read_bytes()))
    files.append(File.generated(config, "llms.txt", content=llms_txt(config, files)))
    return files


def llms_txt(config: Any, files: Files) -> str:
    """The menu with each page's first sentence, for language models: https://llmstxt.org"""
    parts = [f"# {config['site_name']}", f"> {config['site_description']}"]
    alone: list[str] = []
    for entry in config["nav"]:
        for title, pages in entry.items():
            if isinstance(pages, str):
                alone.append(llms_line(title, pages, config, files))
                continue
            lines = [
                llms_line(name, uri, config, files)
                for page in pages
                for name, uri in page.items()
                if isinstance(uri, str)  # the decisions, a list in the list, are for who changes cronjobs
            ]
            parts.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join([*parts[:2], *alone, *parts[2:]]) + "\n"


def llms_line(title: str, uri: str, config: Any, files: Files) -> str:
    file = files.get_file_from_path(uri)
    assert file is not None, uri
    text = text_of(uri, Path(str(file.abs_src_path)).read_text(encoding="utf-8"))
    prose = (part for part in text.split("\n\n") if part[:1].isalnum() or part.startswith(("`", "**")))
    sentence = re.split(
        r"(?<=[.:])\s", LINK.sub(lambda found: found["text"].strip("![]"), " ".join(next(prose).split()))
    )[0]
    address = posixpath.join(config["site_url"] or "", file.url) or "index.html"
    return f"- [{title}]({address}): {sentence}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text with links as they are on the site."""
    uri = page.file.src_uri
    return LINK.sub(lambda found: link_on_site(uri, found), text_of(uri, markdown))


def text_of(uri: str, markdown: str) -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8") if uri == "index.md" else markdown


def in_repository(uri: str, target: str) -> str | None:
    """What *target* of the page *uri* is, from the repository's root; None: it is on another server."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    folder = "" if uri == "index.md" else posixpath.join("docs", posixpath.dirname(uri))
    found = posixpath.normpath(posixpath.join(folder, target))
    return f"{found}/README.md" if (ROOT / found / "README.md").is_file() else found


def link_on_site(uri: str, found: re.Match[str]) -> str:
    target = in_repository(uri, found["target"])
    if target is None:
        return found[0]
    if target == "README.md":
        new = "index.md"
    elif target.startswith("docs/") and not target.endswith(".py"):
        new = target.removeprefix("docs/")
    elif (ROOT / target).is_dir():
        return f"{found['text'].strip('![]')} (`{target}`)"
    else:
        new = f"{COPIES}/{target}.txt"
    return f"{found['text']}({posixpath.relpath(new, posixpath.dirname(uri) or '.')}{found['anchor'] or ''})"
