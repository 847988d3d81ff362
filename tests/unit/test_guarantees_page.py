"""The page on guarantees names tests: each of them exists, and so does each anchor that others link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "guarantees.md"


def defined_tests() -> set[str]:
    """Return the name of every test function of the project."""
    files = [*(PROJECT / "tests").rglob("*.py"), *(PROJECT / "flask_singlejob" / "contract").glob("*.py")]
    return {name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text())}


def anchors() -> set[str]:
    """Return the anchors of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", PAGE.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 50
    assert named - defined_tests() == set()


def test_every_guarantee_names_a_test_of_it() -> None:
    parts = re.split(r"^### (\d+)\. ", PAGE.read_text(), flags=re.M)[1:]
    numbers, texts = parts[::2], parts[1::2]
    assert numbers == [str(number) for number in range(1, 11)]
    for number, text in zip(numbers, texts, strict=True):
        own = text.partition("\n## ")[0]
        assert "▸" in own or "(#" in own, f"guarantee {number} names no test"


@pytest.mark.parametrize(
    "page", [*sorted(PROJECT.glob("docs/*.md")), PROJECT / "README.md"], ids=lambda p: p.name
)
def test_every_link_to_a_part_of_the_page_leads_there(page: Path) -> None:
    text = page.read_text()
    wanted = set(re.findall(r"guarantees\.md#([\w-]+)", text))
    if page == PAGE:
        wanted |= set(re.findall(r"\(#([\w-]+)\)", text))
    assert wanted <= anchors()
