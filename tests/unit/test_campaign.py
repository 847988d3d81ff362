"""One process's part in an election, over an elector that does as it is told."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from flask_singlejob.election import Campaign, Declined, Elector

DEADLINE_SECONDS = 15.0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class ToldElector(Elector):
    """Free or not, in trouble or not, as the test says."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.free = True
        self.held = False
        self.lost = False
        self.trouble: OSError | None = None
        self.cancelled = False
        self.releases = 0

    def describe(self) -> str:
        return "the told elector"

    def set(self, **values: object) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def try_acquire(self) -> bool:
        with self.changed:
            if self.trouble is not None:
                raise self.trouble
            if not self.free:
                return False
            self.free, self.held, self.lost = False, True, False
            return True

    def wait_acquire(self) -> bool:
        with self.changed:
            while not self.cancelled:
                if self.trouble is not None or self.free:
                    return self.try_acquire()
                self.changed.wait()
            self.cancelled = False
            return False

    def cancel(self) -> None:
        # Safe in a signal handler only because no test interrupts a holder of the condition.
        threading.Thread(target=self.set, kwargs={"cancelled": True}).start()

    def still_held(self) -> bool:
        return self.held and not self.lost

    def release(self) -> None:
        with self.changed:
            if self.held:
                self.releases += 1
                self.held, self.free = False, True
                self.changed.notify_all()

    def after_fork(self) -> None:
        self.held = False


class Hooks:
    """Writes down what an owner was told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.begin_error: Exception | None = None
        self.check: Callable[[], str | None] = lambda: None
        self.held_at_end: list[bool] = []
        self.elector: ToldElector | None = None

    def begin_term(self) -> None:
        if self.begin_error is not None:
            raise self.begin_error
        self.calls.append("begin")

    def check_term(self) -> str | None:
        return self.check()

    def end_term(self, reason: str) -> None:
        assert self.elector is not None
        self.held_at_end.append(self.elector.held)
        self.calls.append(f"end: {reason}")


@pytest.fixture
def elector() -> ToldElector:
    return ToldElector()


@pytest.fixture
def hooks(elector: ToldElector) -> Hooks:
    made = Hooks()
    made.elector = elector
    return made


@pytest.fixture
def campaign(elector: ToldElector, hooks: Hooks, caplog: pytest.LogCaptureFixture) -> Iterator[Campaign]:
    caplog.set_level(logging.INFO)
    made = Campaign(elector, hooks, subject="the schedule of host h", watch_seconds=0.01)
    yield made
    thread = made.thread
    made.stop("the test is over")
    if thread is not None:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


def owner(campaign: Campaign) -> bool:
    return campaign.state == "owner"


def test_nothing_runs_before_the_start(campaign: Campaign) -> None:
    assert (campaign.state, campaign.thread, campaign.trouble) == ("idle", None, None)


def test_start_wins_a_free_election_and_says_so_once(
    campaign: Campaign, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    campaign.start()
    campaign.start()
    eventually(lambda: owner(campaign))
    assert hooks.calls == ["begin"]
    said = [record.message for record in caplog.records]
    assert said == [f"This worker (pid {os.getpid()}) owns the schedule of host h (the told elector)"]
    assert campaign.since.tzinfo is not None


def test_standby_becomes_owner_when_the_election_is_free(
    campaign: Campaign, elector: ToldElector, caplog: pytest.LogCaptureFixture
) -> None:
    elector.free = False
    campaign.start()
    eventually(lambda: "is a standby for" in caplog.text)
    assert campaign.state == "waiting"
    elector.set(free=True)
    eventually(lambda: owner(campaign))


def test_stop_ends_the_term_before_the_lock_is_free(
    campaign: Campaign, elector: ToldElector, hooks: Hooks
) -> None:
    campaign.start()
    eventually(lambda: owner(campaign))
    campaign.stop("told to stop")
    assert campaign.wait_until_left(DEADLINE_SECONDS)
    eventually(lambda: campaign.state == "stopped" and campaign.thread is None)
    assert hooks.calls == ["begin", "end: told to stop"]
    assert hooks.held_at_end == [True]
    assert not elector.held


def test_stop_does_not_wait_for_the_watch(elector: ToldElector, hooks: Hooks) -> None:
    campaign = Campaign(elector, hooks, watch_seconds=3600)
    campaign.start()
    eventually(lambda: owner(campaign))
    campaign.stop("told to stop")
    assert campaign.wait_until_left(DEADLINE_SECONDS)


def test_stop_of_a_standby_takes_effect_at_once(campaign: Campaign, elector: ToldElector) -> None:
    elector.free = False
    campaign.start()
    eventually(lambda: campaign.state == "waiting")
    campaign.stop("told to stop")
    assert campaign.state == "stopped"
    elector.set(free=True)
    eventually(lambda: campaign.thread is None)
    assert not elector.held


def test_start_after_stop_campaigns_again(campaign: Campaign, hooks: Hooks) -> None:
    for _ in range(3):
        campaign.start()
        eventually(lambda: owner(campaign))
        campaign.stop("told to stop")
        eventually(lambda: campaign.state == "stopped")
    assert hooks.calls == ["begin", "end: told to stop"] * 3
    assert campaign.term == 3


def test_start_right_after_stop_is_not_lost(campaign: Campaign, elector: ToldElector) -> None:
    for _ in range(50):
        campaign.start()
        campaign.stop("told to stop")
    campaign.start()
    eventually(lambda: owner(campaign))


def test_resigning_owner_lets_another_win_first(
    campaign: Campaign, elector: ToldElector, hooks: Hooks
) -> None:
    other = Hooks()
    other.elector = elector
    rival = Campaign(elector, other, watch_seconds=0.01)
    campaign.start()
    eventually(lambda: owner(campaign))
    rival.start()
    eventually(lambda: rival.state == "waiting")
    campaign.resign("asked to")
    eventually(lambda: owner(rival))
    assert "end: asked to" in hooks.calls
    rival.stop("over")
    eventually(lambda: owner(campaign))


def test_resigning_owner_campaigns_again(campaign: Campaign, hooks: Hooks) -> None:
    campaign.start()
    eventually(lambda: owner(campaign))
    campaign.resign("asked to")
    eventually(lambda: hooks.calls == ["begin", "end: asked to", "begin"])


def test_resign_of_a_standby_is_harmless(campaign: Campaign, elector: ToldElector, hooks: Hooks) -> None:
    elector.free = False
    campaign.start()
    eventually(lambda: campaign.state == "waiting")
    campaign.resign("asked to")
    elector.set(free=True)
    eventually(lambda: owner(campaign))
    assert hooks.calls == ["begin"]


def test_watch_hands_over_for_the_reason_it_is_given(
    campaign: Campaign, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = iter(["scheduler thread died"])
    hooks.check = lambda: next(reasons, None)
    campaign.start()
    eventually(lambda: hooks.calls == ["begin", "end: scheduler thread died", "begin"])
    assert "hands over the schedule of host h: scheduler thread died" in caplog.text


def test_lost_lock_ends_the_term_and_campaigns_again(
    campaign: Campaign, elector: ToldElector, hooks: Hooks
) -> None:
    campaign.start()
    eventually(lambda: owner(campaign))
    elector.set(lost=True)
    eventually(lambda: hooks.calls[2:] == ["begin"])
    assert "deleted, replaced or closed" in hooks.calls[1]


def test_term_that_cannot_begin_frees_the_lock_warns_once_and_is_tried_again(
    campaign: Campaign, elector: ToldElector, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.begin_error = RuntimeError("no store")
    campaign.start()
    eventually(lambda: elector.releases >= 2)
    assert "no store" in str(campaign.trouble)
    assert caplog.text.count("could not begin") == 1
    hooks.begin_error = None
    eventually(lambda: owner(campaign))
    assert campaign.trouble is None


def test_term_that_is_declined_frees_the_lock_without_a_word(
    campaign: Campaign, elector: ToldElector, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.begin_error = Declined("this worker is leaving")
    campaign.start()
    eventually(lambda: elector.releases >= 1)
    assert campaign.trouble is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    hooks.begin_error = None
    eventually(lambda: owner(campaign))


def test_trouble_is_logged_once_shown_retried_and_cleared(
    campaign: Campaign, elector: ToldElector, caplog: pytest.LogCaptureFixture
) -> None:
    elector.trouble = OSError(28, "the disk is full")
    campaign.start()
    eventually(lambda: campaign.trouble == "the disk is full")
    time.sleep(0.6)  # at least one more try, which must not log again
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    elector.set(trouble=None)
    eventually(lambda: owner(campaign))
    assert campaign.trouble is None


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(3)])
def test_campaign_survives_an_error_in_its_thread_and_logs_it(
    campaign: Campaign,
    elector: ToldElector,
    hooks: Hooks,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    errors = iter([error])

    def check() -> None:
        for found in errors:
            raise found

    hooks.check = check
    campaign.start()
    eventually(lambda: len(hooks.calls) >= 3 and owner(campaign))
    assert hooks.calls == ["begin", "end: its watch failed", "begin"]
    assert "failed; it goes on" in caplog.text


def test_error_at_the_end_of_a_term_still_frees_the_lock(
    campaign: Campaign, elector: ToldElector, hooks: Hooks
) -> None:
    hooks.elector = None  # end_term raises
    campaign.start()
    eventually(lambda: owner(campaign))
    campaign.stop("told to stop")
    eventually(lambda: campaign.thread is None)
    assert not elector.held


def test_stop_in_a_signal_handler_and_threads_at_once_is_harmless(campaign: Campaign, hooks: Hooks) -> None:
    campaign.start()
    eventually(lambda: owner(campaign))
    previous = signal.signal(signal.SIGUSR1, lambda *_: campaign.stop("signal"))
    try:
        threads = [threading.Thread(target=campaign.stop, args=("thread",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        os.kill(os.getpid(), signal.SIGUSR1)
        campaign.stop("main")
        for thread in threads:
            thread.join()
        eventually(lambda: campaign.state == "stopped" and campaign.thread is None)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert len(hooks.calls) == 2


def test_forked_child_has_no_campaign(campaign: Campaign, elector: ToldElector) -> None:
    campaign.start()
    eventually(lambda: owner(campaign))
    child = os.fork()
    if child == 0:
        os._exit(0 if (campaign.state, campaign.thread) == ("idle", None) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert owner(campaign)
    assert elector.held
