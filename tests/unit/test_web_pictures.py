"""The pictures' geometry: what lies where, and what they say in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from flask_singlejob import RunStatus
from flask_singlejob.records import to_ms
from flask_singlejob.web.charts import duration_chart, history_of, nice_top, percentile, strip_of
from flask_singlejob.web.show import away_text, percent_text, seconds_text, shown, span_text, utc_text
from flask_singlejob.web.timeline import LEFT, WIDTH, timeline_of
from tests.unit.web_kit import ended


def now() -> datetime:
    """Return the time: not that of the import, which may be minutes ago."""
    return datetime.now(timezone.utc)


def ms() -> int:
    """Return the time, UTC milliseconds."""
    return to_ms(now())


def test_bars_lie_in_their_jobs_lane_where_their_time_is() -> None:
    runs = [ended("b", ago=60, host="h2"), ended("a", ago=300), ended("b", ago=600, host="h1")]
    picture = timeline_of(runs, {}, now=ms(), span_seconds=900)
    assert [(lane.job_id, lane.host, lane.first) for lane in picture.lanes] == [
        ("a", "h1", True),
        ("b", "h1", True),
        ("b", "h2", False),
    ]
    early, late = picture.lanes[1].bars[0].x, picture.lanes[2].bars[0].x
    assert LEFT < early < late < picture.now_x < WIDTH
    # 540 of the 900 seconds before now lie between the two.
    assert (late - early) / (picture.now_x - LEFT) == pytest.approx(540 / 900, abs=0.01)


def test_ticks_not_run_are_marks_from_the_first_to_the_last() -> None:
    first = now() - timedelta(seconds=500)
    skipped = replace(
        ended("a", RunStatus.SKIPPED, reason="held", count=4),
        scheduled_at=first,
        last_scheduled_at=first + timedelta(seconds=300),
    )
    (lane,) = timeline_of([skipped], {}, now=ms(), span_seconds=900).lanes
    (mark,) = lane.marks
    assert mark.kind == "skipped"
    assert mark.x0 < mark.x
    assert "4 ticks" in mark.title
    assert "(held)" in mark.title


def test_what_happened_on_no_host_lies_beside_the_runs_of_its_job() -> None:
    runs = [ended("a", RunStatus.MISSED, reason="no_owner"), ended("a", ago=100)]
    (lane,) = timeline_of(runs, {}, now=ms(), span_seconds=900).lanes
    assert (len(lane.bars), len(lane.marks)) == (1, 1)


def test_running_bar_ends_now() -> None:
    running = replace(ended("a", ago=50), status=RunStatus.RUNNING, finished_at=None, duration=None)
    picture = timeline_of([running], {}, now=ms(), span_seconds=900)
    bar = picture.lanes[0].bars[0]
    assert bar.x + bar.width == pytest.approx(picture.now_x, abs=0.5)


def test_ticks_to_come_lie_behind_now_and_have_a_lane_without_runs_too() -> None:
    picture = timeline_of(
        [], {"later": [ms() + 30_000], "far": [ms() + 10_000_000]}, now=ms(), span_seconds=900
    )
    assert [lane.job_id for lane in picture.lanes] == ["later"]
    assert picture.lanes[0].marks[0].x > picture.now_x


def test_lanes_are_bounded_and_the_rest_is_told() -> None:
    runs = [ended(f"job {number:03}") for number in range(100)]
    picture = timeline_of(runs, {}, now=ms(), span_seconds=900, max_lanes=40)
    assert len(picture.lanes) == 40
    assert picture.more_lanes == 60


def test_timeline_says_in_words_what_it_shows() -> None:
    runs = [ended("a"), ended("a", RunStatus.FAILED), ended("b", RunStatus.LOST), ended("c", ago=5000)]
    picture = timeline_of(runs, {}, now=ms(), span_seconds=900)
    assert picture.summary == "The last 15 min: 3 records of 2 jobs: 1 succeeded, 1 failed, 1 lost."


def test_success_rate_and_percentiles_are_of_the_runs_that_ended() -> None:
    runs = [ended("a", duration=float(number)) for number in range(1, 20)]
    runs += [ended("a", RunStatus.FAILED, duration=20.0), ended("a", RunStatus.SKIPPED)]
    history = history_of(runs, now())
    assert history.sample == 20
    assert history.success_rate == 0.95
    assert (history.p50, history.p95) == (10.0, 19.0)


def test_history_without_runs_says_so() -> None:
    history = history_of([], now())
    assert history.success_rate is None
    assert history.strip.label == "No runs yet"
    assert duration_chart([], now()).label == "No run has ended yet"


def test_strip_has_the_newest_at_its_right_and_bad_news_higher() -> None:
    strip = strip_of([ended("a", RunStatus.FAILED), ended("a", ago=60)], now())
    old, new = strip.cells
    assert (old.status, new.status) == ("succeeded", "failed")
    assert old.x < new.x
    assert old.height < new.height
    assert strip.label == "Last 2: 1 succeeded, 1 failed"


def test_durations_are_drawn_to_scale_from_zero() -> None:
    chart = duration_chart([ended("a", duration=4.0), ended("a", duration=2.0)], now())
    short, long = chart.points
    assert long.height == pytest.approx(2 * short.height, abs=0.2)
    assert [label for _, label in chart.lines] == ["0 ms", "2.5 s", "5 s"]


@pytest.mark.parametrize(
    ("value", "top"),
    [
        (0, 0.001),
        (0.9, 1),
        (1, 1),
        (1.1, 2),
        (3, 5),
        (12, 20),
        (61, 120),
        (4000, 7200),
        (200000, 259200),
        (0.021, 0.05),
    ],
)
def test_scales_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([1.0], 0.95) == 1.0
    assert percentile([], 0.5) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0005, "0.5 ms"),
        (0.25, "250 ms"),
        (1.234, "1.23 s"),
        (59.99, "60 s"),
        (61, "1 min 1 s"),
        (3725, "1 h 2 min"),
        (90061, "1 d 1 h"),
        (-2, "-2 s"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_texts_show_what_would_hide_or_reorder() -> None:
    assert shown("a\u202eb\u200bc\x00d") == "a\\u202eb\\u200bc\\u0000d"
    assert shown("line\nline\ttab שלום") == "line\nline\ttab שלום"
    assert len(shown("x" * 1_000_000)) < 61_000


def test_moments_read_well() -> None:
    now = datetime(2026, 3, 4, 12, 0, 0, tzinfo=timezone.utc)
    assert utc_text(now, now) == "12:00:00 UTC"
    elsewhere = now.astimezone(timezone(timedelta(hours=5)))
    assert utc_text(elsewhere, now) == "12:00:00 UTC"
    assert utc_text(now - timedelta(days=1), now) == "2026-03-03 12:00:00 UTC"
    assert away_text(now + timedelta(seconds=90), now) == "in 1 min 30 s"
    assert away_text(now - timedelta(seconds=5), now) == "5 s ago"
    assert span_text(0.2) == "0 s"


def test_success_rate_never_rounds_up_to_all() -> None:
    assert percent_text(0.9999) == "99.9 %"
    assert percent_text(1.0) == "100 %"
    assert percent_text(None) == "–"
