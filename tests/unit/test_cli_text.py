"""Cells and tables stay within their width whatever they hold; times are told in two zones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_singlejob.cli.text import Column, clean, cut, full_moment, moment, seconds, table, width


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@given(st.text(), st.integers(1, 60), st.booleans())
def test_cut_text_never_takes_more_than_its_columns(text: str, columns: int, middle: bool) -> None:
    assert width(cut(text, columns, middle=middle)) <= columns


@given(st.text(st.characters(categories=["L", "N", "P"]), min_size=1))
def test_text_that_fits_is_not_cut(text: str) -> None:
    assert cut(text, width(text)) == text


def test_long_text_is_cut_with_an_ellipsis_keeping_its_end_when_asked() -> None:
    assert cut("abcdefghij", 7) == "abcdef…"
    assert cut("module.submodule.nightly_report", 16, middle=True) == "module.sub…eport"


def test_double_width_characters_count_twice_and_marks_not_at_all() -> None:
    assert width("名前") == 4
    assert width("é") == width("e\u0301") == 1
    assert width("a\u200db") == 2


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=5))
def test_no_line_of_a_table_is_wider_than_its_limit(rows: list[tuple[str, str, str]]) -> None:
    for line in table([Column("A", 4, middle=True), Column("B", 4), Column("C")], rows, limit=40):
        assert width(line) <= 40
        assert "\n" not in line
        assert "\r" not in line


def test_what_could_move_the_cursor_or_turn_the_line_is_shown_as_an_escape() -> None:
    assert clean("a\x1b[2Jb\n\u202ec\u2028") == "a\\x1b[2Jb\\x0a\\u202ec\\u2028"
    assert clean("zwj\u200dé名") == "zwj\u200dé名"


def test_right_to_left_cells_are_isolated_from_their_neighbours() -> None:
    assert table([Column("A"), Column("B")], [["עברית", "x"]])[1] == "\u2068עברית\u2069  x"


def test_columns_that_are_empty_in_every_row_are_left_out() -> None:
    assert table([Column("A"), Column("B")], [["x", ""], ["y", None]]) == ["A", "x", "y"]


def test_moment_is_told_in_local_time_and_utc(berlin: None) -> None:
    now = datetime(2026, 7, 1, tzinfo=timezone.utc)
    assert moment("2026-07-01T10:00:00+00:00", now=now) == "07-01 12:00:00 (10:00:00Z)"
    assert moment("2026-07-01T23:00:00+00:00", now=now) == "07-02 01:00:00 (07-01 23:00:00Z)"
    assert moment("2027-01-01T10:00:00+00:00", now=now) == "2027-01-01 11:00:00 (10:00:00Z)"
    assert full_moment("2026-07-01T10:00:00+00:00") == "2026-07-01 12:00:00 CEST (2026-07-01 10:00:00 UTC)"


def test_lengths_of_time_are_told_in_at_most_two_units() -> None:
    assert [seconds(value) for value in (0.004, 2.5, 59.6, 3700, 90_000)] == [
        "0.00 s",
        "2.5 s",
        "1 m 0 s",
        "1 h 1 m",
        "1 d 1 h",
    ]
