"""The checker catches each kind of bad history, and passes a good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.apps.witness import tell_to
from tests.integration.checker import Expected, OwnerSample, Report, check, read_events

START = 1_700_000_000
WINDOW = (START + 1.0, START + 9.0)

Event = dict[str, Any]
History = list[Event]


def run(n: int, *, host: str = "a", pid: int = 1, length: float = 0.1, token: int | None = None) -> History:
    """Return the two events of the run of the n-th tick, begun 10 ms late."""
    facts = {
        "job": "tick",
        "tick": (START + n) * 1000,
        "token": (n + 1) * 10 if token is None else token,
        "run": f"{host}-{pid}-{n}",
        "host": host,
        "pid": pid,
        "cause": "schedule",
    }
    begun = 100.0 + n + 0.01
    return [
        {"event": "start", **facts, "mono": begun, "real": START + n + 0.01},
        {"event": "end", **facts, "mono": begun + length, "real": START + n + 0.01 + length},
    ]


def good(**options: Any) -> History:
    """Return ten ticks that ran once each."""
    return [event for n in range(10) for event in run(n, **options)]


def judge(events: History, expected: Expected | None = None, **options: Any) -> Report:
    return check(events, [expected or Expected("tick")], window=WINDOW, **options)


def test_good_history_is_clean() -> None:
    report = judge(good())
    report.assert_clean()
    assert report.ticks == {"tick": 9}
    assert max(report.late) == pytest.approx(0.01, abs=0.001)


def double(events: History) -> None:
    events += run(4, host="b", pid=2, length=0.0, token=51)
    for event in events[-2:]:
        event["mono"] += 0.2


def missing(events: History) -> None:
    del events[8:10]


def all_later_missing(events: History) -> None:
    del events[10:]


def overlap(events: History) -> None:
    events[7]["mono"] += 1.5


def unfinished(events: History) -> None:
    del events[19]


def never_ended(events: History) -> None:
    del events[9]


def old_token(events: History) -> None:
    events[8]["token"] = events[9]["token"] = 7


def off_grid(events: History) -> None:
    events[8]["tick"] += 300
    events[9]["tick"] += 300


def later_tick_first(events: History) -> None:
    for event in events[8:10]:
        event["mono"] += 1.3


def nothing(events: History) -> None:
    events.clear()


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (double, {"double"}),
        (missing, {"missing"}),
        (all_later_missing, {"missing"}),
        (overlap, {"overlap"}),
        (unfinished, {"unfinished"}),
        (never_ended, {"overlap", "unfinished"}),
        (old_token, {"token"}),
        (off_grid, {"off_grid", "missing"}),
        (later_tick_first, {"order", "token"}),
        (nothing, {"silent"}),
    ],
)
def test_bad_history_is_caught(spoil: Callable[[History], None], kinds: set[str]) -> None:
    events = good()
    spoil(events)
    report = judge(events)
    assert {fault.kind for fault in report.faults} == kinds
    with pytest.raises(AssertionError, match="|".join(kinds)):
        report.assert_clean()


def test_tick_outside_the_window_is_not_missed_but_its_double_counts() -> None:
    events = good()
    del events[0:2]
    assert not judge(events).faults
    events += run(0, token=3) + run(0, host="b", pid=2, token=4)
    assert judge(events).of("double")


def test_two_owners_at_one_moment_are_caught() -> None:
    samples = [OwnerSample(1.0, "a", (1,)), OwnerSample(1.1, "a", (1, 2)), OwnerSample(1.2, "b", ())]
    faults = judge(good(), samples=samples).of("owners")
    assert [fault.job for fault in faults] == ["a"]


def test_each_host_needs_each_tick_in_host_scope() -> None:
    both = good(host="a", pid=1) + good(host="b", pid=2)
    expected = Expected("tick", scope="host", hosts=("a", "b"))
    assert not judge(both, expected).faults
    assert judge(good(host="a"), expected).of("silent")
    assert len(judge(both, Expected("tick")).of("double")) == 10
    del both[8:10]
    assert [fault.kind for fault in judge(both, expected).faults] == ["missing"]


def test_each_process_needs_each_tick_while_it_lives_in_worker_scope() -> None:
    expected = Expected("tick", scope="worker")
    short_lived = [event for n in range(3, 6) for event in run(n, pid=2)]
    assert not judge(good(pid=1) + short_lived, expected).faults
    del short_lived[2:4]
    assert judge(good(pid=1) + short_lived, expected).of("missing")


def test_run_of_a_killed_process_ends_with_its_death() -> None:
    events = good()
    end = events.pop(9)
    killed = {"event": "killed", "pid": 99, "killed": 1, "mono": end["mono"], "real": end["real"]}
    assert not judge([*events, killed]).faults


def test_tick_lost_with_its_claimer_is_excused_by_name_only() -> None:
    events = good()
    missing(events)
    assert not judge(events, excused={"tick": [(START + 4) * 1000]}).faults
    assert judge(events, excused={"tick": [(START + 5) * 1000]}).of("missing")


def test_coalesced_run_stands_for_as_many_ticks_as_it_says() -> None:
    events = good()
    del events[6:10]
    assert len(judge(events).of("missing")) == 2
    events[6]["stood_for"] = 3
    assert not judge(events).faults
    events[6]["stood_for"] = 2
    assert len(judge(events).of("missing")) == 1


def test_rerun_of_a_lost_tick_is_no_double_when_it_was_asked_for() -> None:
    events = good()
    again = run(4, pid=2, length=0.0, token=51)
    for event in again:
        event["mono"] += 0.2
    events += again
    assert judge(events).of("double")
    assert not judge(events, Expected("tick", attempts=2)).faults


def test_witness_lines_come_back_as_they_were_told(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    assert read_events(path) == []
    tell_to(str(path), "start", job="ü", tick=1)
    tell_to(str(path), "end", job="ü", tick=1)
    events = read_events(path)
    assert [event["event"] for event in events] == ["start", "end"]
    assert events[0]["job"] == "ü"
    assert events[0]["mono"] <= events[1]["mono"]
