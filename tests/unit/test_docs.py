"""What README.md and the pages in docs/ name exists: files, anchors, keys, commands, options, public names."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import flask_singlejob
from flask_singlejob import keys, signals
from flask_singlejob.cli import COMMANDS, SingleJobGroup

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
PAGES = [
    PROJECT / "README.md",
    PROJECT / "CHANGELOG.md",
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "example_app" / "README.md",
    *sorted(DOCS.glob("*.md")),
]
# Read by the tests alone, never by the package.
TEST_VARIABLES = re.compile(r"SINGLEJOB_(TEST_|WRITE_)")


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """Return a page without its blocks of code and comments, where a # makes no heading and [x](y) no link."""
    return re.sub(r"^(```.*?^```|<!--.*?-->)", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose_of(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 0
        anchor = plain
        while anchor in found:
            number += 1
            anchor = f"{plain}-{number}"
        found.add(anchor)
    return found


def links_of(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose_of(page))):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        is_broken = not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors_of(file)))
        if is_broken:
            broken.append(target)
    return broken


@each_page
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


@each_page
def test_every_configuration_key_that_is_named_exists(page: Path) -> None:
    known = {key.name for key in keys.KEYS}
    named = set(re.findall(r"\bSINGLEJOB_[A-Z][A-Z_]*[A-Z]\b", text_of(page)))
    for name in re.findall(r"\bFLASK_(SINGLEJOB_[A-Z_]*[A-Z])\b", text_of(page)):
        named.add(name.partition("__")[0])
    assert sorted(name for name in named - known if not TEST_VARIABLES.match(name)) == []


@each_page
def test_every_command_and_option_that_is_shown_exists(page: Path) -> None:
    group = SingleJobGroup("singlejob")
    context = click.Context(group)
    unknown = []
    for line in re.findall(r"flask (?:--app \S+ )?singlejob ([a-z][^`\n]*)", text_of(page)):
        words = re.split(r"[\s,;|&)]", re.split(r"[#|&;]", line)[0])
        command = group.get_command(context, words[0]) if words[0] in COMMANDS else None
        if command is None:
            unknown.append(line)
            continue
        options = {"--help", *(option for given in command.params for option in given.opts)}
        unknown += [line for word in words[1:] if word.startswith("--") and word not in options]
    assert unknown == []


@each_page
def test_every_block_of_python_compiles_and_imports_names_that_exist(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE):
        tree = ast.parse(textwrap.dedent(block), filename=name_of(page))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "flask_singlejob":
                missing = [alias.name for alias in node.names if not hasattr(flask_singlejob, alias.name)]
                assert missing == []


def test_every_page_is_on_the_map_of_the_docs() -> None:
    linked = {target.partition("#")[0] for target in links_of(DOCS / "index.md")}
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}


def test_every_signal_is_described() -> None:
    described = set(re.findall(r"^\| `(\w+)` \|", text_of(DOCS / "signals.md"), re.MULTILINE))
    assert described == set(signals.__all__) - {"send"}


def test_every_configuration_key_is_described() -> None:
    described = set(re.findall(r"^\| `(\w+)` \|", text_of(DOCS / "config.md"), re.MULTILINE))
    assert {key.name for key in keys.KEYS} <= described


def test_the_readme_stays_short() -> None:
    assert len(text_of(PROJECT / "README.md").splitlines()) <= 150


def test_a_broken_link_a_missing_heading_and_a_missing_file_are_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`, three\n[a](#one-two-three) [b](#four) [c](gone.md) [d](page.md#five)\n")
    assert broken_links(page) == ["#four", "gone.md", "page.md#five"]
