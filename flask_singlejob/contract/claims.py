"""The contract of claims: who gets a row, what a claim changes, and what a stale holder cannot change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..records import ClaimKey, ClaimRow, RunStatus, new_id
from ..stores.base import Store
from .kit import JOB, LOCK, ContractKit, record_of

__all__ = ["ClaimContract"]

_ODD_NAMES = (
    *("nightly", "Nightly", "NIGHTLY", "nightly ", " nightly", "nightlý", "nightly\t", "night\u00adly"),
    *(
        "straße",
        "strasse",
        "\u00e9",
        "e\u0301",
        "%",
        "_",
        "'; --",
        '"',
        "\\",
        "{a}:b",
        "🕰" * 127,
        "你" * 255,
        "a" * 255,
    ),
    *("a" * 254, "a" * 254 + "b", "null", "0", "*", "?", "[a]"),
)


class ClaimContract(ContractKit):
    """Taking, renewing, releasing, settling and ending claims."""

    # -- rows ---------------------------------------------------------------------------------

    def test_new_job_has_nothing_due_from_before_it_was_made(self) -> None:
        store = self.store()
        before = store.poll().now
        row = self.row(store)
        assert before <= row.resolved <= store.poll().now
        assert row == ClaimRow(key=JOB, resolved=row.resolved)
        assert self.row(store, LOCK) == ClaimRow(key=LOCK)
        assert self.row(store, ClaimKey("once", "seed")).resolved == 0

    def test_ensuring_a_row_again_changes_nothing(self) -> None:
        store = self.store()
        first = self.row(store)
        self.pass_time(store, first.resolved + 5)
        assert store.ensure([JOB, LOCK, JOB]) == {JOB: first, LOCK: ClaimRow(key=LOCK)}
        assert store.ensure([]) == {}

    def test_many_rows_are_made_and_read_at_once(self) -> None:
        store = self.store()
        keys = [ClaimKey("job" if i % 3 else "lock", f"job {i}", host=f"h{i % 7}") for i in range(450)]
        made = store.ensure(keys)
        assert list(made) == keys
        assert all(row.key == key for key, row in made.items())
        assert {row.key for row in store.rows(keys)} == set(keys)

    def test_rows_are_read_by_key_by_kind_and_all_without_making_any(self) -> None:
        store = self.store()
        other = ClaimKey("job", "other", host="web-1", slot=2)
        store.ensure([JOB, LOCK, other])
        assert {row.key for row in store.rows()} == {JOB, LOCK, other}
        assert {row.key for row in store.rows(kind="job")} == {JOB, other}
        assert [row.key for row in store.rows([LOCK, ClaimKey("job", "absent")])] == [LOCK]
        assert store.rows([ClaimKey("job", "absent")]) == []
        assert store.rows([]) == []
        assert store.rows(kind="once") == []

    def test_names_are_told_apart_to_the_letter(self) -> None:
        store = self.store()
        keys = [ClaimKey("job", name) for name in _ODD_NAMES]
        keys += [
            ClaimKey("job", "x", host="Web"),
            ClaimKey("job", "x", host="web"),
            ClaimKey("job", "x"),
            ClaimKey("lock", "x"),
            ClaimKey("once", "x"),
            ClaimKey("job", "x", slot=1),
        ]
        store.ensure(keys)
        holders = {}
        for key in keys:
            outcome = self.take(store, key)
            assert outcome.won, f"{key} is taken for another"
            assert outcome.row.key == key
            holders[key] = outcome.row.holder
        assert {row.key: row.holder for row in store.poll().held} == holders
        assert {row.key: row.holder for row in store.rows()} == holders

    def test_two_clusters_never_see_each_other(self) -> None:
        one, other = self.store(), self.store(" ")
        assert self.take(one).won
        assert self.take(other).won
        assert len(one.poll().held) == len(other.poll().held) == 1
        assert one.poll().held[0].holder != other.poll().held[0].holder
        one.add_run(record_of("nightly", 1_000, id="a"))
        one.put("definition", "nightly", {})
        assert other.runs() == []
        assert other.run("a") is None
        assert other.docs("definition") == []
        assert other.doc("definition", "nightly") is None
        assert other.prune(before=10**13, keep=0) == 0
        assert [run.id for run in one.runs()] == ["a"]

    # -- claiming -----------------------------------------------------------------------------

    def test_tick_is_won_and_settled_by_one_write(self) -> None:
        store = self.store()
        tick, resolved = self.due_tick(store)
        info = {"host": "wéb-1", "pid": 7, "attempt": 1}
        before = store.poll().now
        outcome = self.take(store, lease_ms=30_000, tick=tick, seen_resolved=resolved, info=info)
        row = outcome.row
        assert outcome.won
        assert before <= outcome.now <= store.poll().now
        assert row.since is not None
        assert before <= row.since <= outcome.now
        assert row == ClaimRow(
            key=JOB,
            resolved=tick,
            token=row.token,
            holder=row.holder,
            held_tick=tick,
            since=row.since,
            expires=row.since + 30_000,
            info=info,
        )
        assert row.token >= before
        assert store.rows([JOB]) == [row]
        assert store.poll().held == (row,)

    def test_claim_makes_a_missing_row(self) -> None:
        store = self.store()
        assert self.take(store, LOCK).won
        early = self.take(store, ClaimKey("job", "new"), tick=1)
        assert not early.won
        assert early.row.resolved > 1
        assert early.row.holder is None

    def test_tick_ahead_of_the_stores_clock_is_not_won(self) -> None:
        store = self.store()
        row = self.row(store)
        outcome = self.take(store, tick=store.poll().now + 60_000, seen_resolved=row.resolved)
        assert not outcome.won
        assert outcome.row == row == self.row(store)

    def test_settled_tick_is_never_won_again(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        self.end(store, outcome)
        for tick in (outcome.row.resolved, outcome.row.resolved - 1):
            assert not self.take(store, tick=tick, seen_resolved=outcome.row.resolved).won
            assert not self.take(store, tick=tick).won
        assert self.row(store).holder is None

    def test_claim_needs_the_resolved_that_was_seen(self) -> None:
        store = self.store()
        tick, resolved = self.due_tick(store)
        for wrong in (resolved - 1, resolved + 1, 0):
            assert not self.take(store, tick=tick, seen_resolved=wrong).won
            assert not self.take(store, seen_resolved=wrong).won
        assert self.take(store, tick=tick, seen_resolved=resolved).won

    def test_held_row_refuses_others_and_tells_who_holds_it(self) -> None:
        store = self.store()
        mine = self.take_tick(store, info={"host": "web-1"})
        self.pass_time(store, mine.row.resolved + 1)
        seen = mine.row.resolved
        for tick, resolved in ((None, None), (seen + 1, seen)):
            outcome = self.take(store, tick=tick, seen_resolved=resolved)
            assert not outcome.won
            assert outcome.row == mine.row
        assert self.row(store) == mine.row

    def test_ended_lease_alone_lets_nobody_else_in(self) -> None:
        store = self.store()
        mine = self.take(store, lease_ms=1)
        self.pass_time(store, mine.now + 5)
        assert not self.take(store).won
        assert self.row(store).holder == mine.row.holder

    def test_claim_by_hand_leaves_the_schedule_alone(self) -> None:
        store = self.store()
        row = self.row(store)
        skipped = record_of("nightly", row.resolved, RunStatus.SKIPPED)
        assert store.settle(JOB, row.resolved, row.resolved + 1, skipped)
        outcome = self.take(store)
        assert outcome.won
        assert outcome.row.held_tick == outcome.row.since
        assert outcome.row.resolved == row.resolved + 1
        assert outcome.row.streak == skipped.id
        self.end(store, outcome)
        assert self.take_tick(store).row.streak is None

    def test_hold_outlasts_the_release(self) -> None:
        store = self.store()
        outcome = self.take(store, LOCK, hold_ms=150)
        assert outcome.row.since is not None
        until = outcome.row.since + 150
        assert outcome.row.hold_until == until
        self.end(store, outcome)
        row = self.row(store, LOCK)
        assert (row.holder, row.hold_until) == (None, until)
        second = self.take(store, LOCK)
        assert not second.won or second.now >= until
        if not second.won:
            self.pass_time(store, until)
            second = self.take(store, LOCK)
        assert second.won
        assert second.row.hold_until == until

    def test_hold_keeps_a_row_from_being_taken_for_its_whole_time(self) -> None:
        store = self.store()
        self.end(store, self.take(store, LOCK, hold_ms=3_600_000))
        assert not self.take(store, LOCK).won
        assert self.row(store, LOCK).holder is None

    def test_tokens_only_grow_and_never_fall_below_the_clock(self) -> None:
        store = self.store()
        last = 0
        for turn in range(12):
            before = store.poll().now
            outcome = self.take(store, LOCK)
            token = outcome.row.token
            assert token > last
            assert token >= before
            last = token
            if turn % 2:
                self.end(store, outcome)
                assert self.row(store, LOCK).token == token
            else:
                assert store.expire(*self.held(outcome), forced=True)
                last = self.row(store, LOCK).token
                assert last > token

    # -- renewing -----------------------------------------------------------------------------

    def test_renewal_extends_the_lease_and_tells_what_is_left(self) -> None:
        store = self.store()
        outcome = self.take(store, lease_ms=10_000)
        before = store.poll().now
        left = store.renew(*self.held(outcome), 60_000)
        row = self.row(store)
        assert left is not None
        assert row.expires is not None
        assert before + 60_000 <= row.expires <= store.poll().now + 60_000
        assert 0 < left <= 60_000
        assert row == replace(outcome.row, expires=row.expires)

    def test_renewal_never_shortens_a_lease(self) -> None:
        store = self.store()
        outcome = self.take(store, lease_ms=60_000)
        left = store.renew(*self.held(outcome), 10)
        assert left is not None
        assert left > 10_000
        assert self.row(store) == outcome.row

    def test_progress_is_stored_and_kept_until_the_claim_ends(self) -> None:
        store = self.store()
        outcome = self.take(store)
        progress = {"done": 3, "total": None, "note": "Zeile 你好"}
        left = store.renew(*self.held(outcome), 0, progress=progress)
        assert left is not None
        assert left > 30_000
        assert self.row(store) == replace(outcome.row, progress=progress)
        assert store.renew(*self.held(outcome), 0)
        assert self.row(store).progress == progress
        self.end(store, outcome)
        assert self.row(store).progress is None
        assert store.poll().held == ()

    def test_stale_holder_renews_nothing(self) -> None:
        store = self.store()
        outcome = self.take(store)
        key, holder, token = self.held(outcome)
        assert store.renew(key, new_id(), token, 99_000, progress={"a": 1}) is None
        assert store.renew(key, holder, token - 1, 99_000, progress={"a": 1}) is None
        assert store.renew(LOCK, holder, token, 99_000) is None
        assert self.row(store) == outcome.row

    def test_ended_lease_cannot_be_renewed_or_released(self) -> None:
        store = self.store()
        outcome = self.take_tick(store, lease_ms=1)
        self.pass_time(store, outcome.now + 2)
        run = self.run_of(outcome)
        assert store.renew(*self.held(outcome), 60_000, progress={"a": 1}) is None
        assert not store.release(*self.held(outcome), run=run, done=True)
        assert self.row(store) == outcome.row
        assert store.run(run.id) is None

    # -- releasing ----------------------------------------------------------------------------

    def test_release_frees_the_row_and_keeps_what_the_holder_said(self) -> None:
        store = self.store()
        outcome = self.take_tick(store, info={"host": "web-1"})
        self.end(store, outcome)
        assert self.row(store) == replace(
            outcome.row, holder=None, held_tick=None, since=None, expires=None, progress=None
        )
        assert store.poll().held == ()
        assert not store.release(*self.held(outcome))

    def test_release_writes_the_run_with_it(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        run = self.run_of(outcome)
        before = store.poll().now
        self.end(store, outcome, run=run)
        row = self.row(store)
        assert row.last_run == run.to_record()
        assert row.last_success is not None
        assert before <= row.last_success <= store.poll().now
        assert store.runs("nightly") == [run]
        failed = self.take_tick(store)
        bad = self.run_of(failed, RunStatus.FAILED, error="Traceback …")
        self.end(store, failed, run=bad)
        after = self.row(store)
        assert after.last_run == bad.to_record()
        assert after.last_success == row.last_success
        assert {run.id for run in store.runs("nightly")} == {run.id, bad.id}

    def test_stale_release_changes_nothing(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        key, holder, token = self.held(outcome)
        run = record_of("nightly", outcome.now)
        more = {"run": run, "resolved": outcome.now, "seen_resolved": outcome.row.resolved, "done": True}
        assert not store.release(key, new_id(), token, **more)  # type: ignore[arg-type]
        assert not store.release(key, holder, token + 1, **more)  # type: ignore[arg-type]
        assert not store.release(LOCK, holder, token, **more)  # type: ignore[arg-type]
        assert self.row(store) == outcome.row
        assert store.runs() == []

    def test_release_settles_what_fell_due_meanwhile(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        skipped = record_of("nightly", outcome.now, RunStatus.SKIPPED, count=3)
        seen = outcome.row.resolved
        run = self.run_of(outcome)
        self.end(store, outcome, run=run, resolved=seen + 3, seen_resolved=seen, skipped=skipped)
        row = self.row(store)
        assert (row.resolved, row.streak) == (seen + 3, skipped.id)
        assert row.last_run == run.to_record()
        assert store.run(skipped.id) == skipped

    def test_release_settles_nothing_that_changed_meanwhile(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        skipped = record_of("nightly", outcome.now, RunStatus.SKIPPED)
        seen = outcome.row.resolved
        self.end(store, outcome, resolved=seen + 3, seen_resolved=seen - 1, skipped=skipped)
        row = self.row(store)
        assert (row.holder, row.resolved, row.streak) == (None, seen, None)
        assert store.runs() == []

    def test_release_never_moves_resolved_back(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        seen = outcome.row.resolved
        self.end(store, outcome, resolved=seen - 5, seen_resolved=seen)
        assert self.row(store).resolved == seen

    def test_done_marks_a_once_only_task(self) -> None:
        store = self.store()
        key = ClaimKey("once", "seed-roles")
        outcome = self.take(store, key, seen_resolved=0)
        assert outcome.won
        before = store.poll().now
        self.end(store, outcome, done=True)
        row = self.row(store, key)
        assert before <= row.resolved <= store.poll().now
        assert not self.take(store, key, seen_resolved=0).won

    # -- settling -----------------------------------------------------------------------------

    def test_settling_needs_the_resolved_that_was_seen_and_a_free_row(self) -> None:
        store = self.store()
        seen = self.row(store).resolved
        record = record_of("nightly", seen, RunStatus.MISSED)
        assert not store.settle(JOB, seen + 1, seen + 9, record)
        assert not store.settle(ClaimKey("job", "absent"), 0, 9, record)
        outcome = self.take(store)
        assert not store.settle(JOB, seen, seen + 9, record)
        assert not store.settle(JOB, seen, seen + 9)
        assert self.row(store) == outcome.row
        assert store.runs() == []
        self.end(store, outcome)
        assert store.settle(JOB, seen, seen + 9, record)
        assert self.row(store).resolved == seen + 9
        assert store.rows([ClaimKey("job", "absent")]) == []

    def test_like_records_in_a_row_are_one_that_is_replaced(self) -> None:
        store = self.store()
        seen = self.row(store).resolved
        first = record_of("nightly", seen, RunStatus.MISSED)
        assert store.settle(JOB, seen, seen + 1, first)
        assert self.row(store).streak == first.id
        longer = replace(first, count=2, status=RunStatus.SKIPPED)
        assert store.settle(JOB, seen + 1, seen + 2, longer)
        assert store.runs() == [longer]
        assert store.runs(status=[RunStatus.MISSED]) == []
        assert store.settle(JOB, seen + 2, seen + 3)
        assert self.row(store).streak is None
        assert store.runs() == [longer]

    def test_settling_may_take_a_row_back_after_the_stores_clock_went_back(self) -> None:
        store = self.store()
        seen = self.row(store).resolved
        assert store.settle(JOB, seen, seen + 10**11)
        assert store.settle(JOB, seen + 10**11, seen - 10**6)
        assert self.row(store).resolved == seen - 10**6

    # -- ending somebody's claim --------------------------------------------------------------

    def test_running_lease_is_not_ended(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        lost = self.run_of(outcome, RunStatus.LOST)
        assert not store.expire(*self.held(outcome), lost=lost, rerun=True)
        assert self.row(store) == outcome.row
        assert store.runs() == []

    def test_ended_lease_is_ended_once_and_the_lost_run_recorded(self) -> None:
        store = self.store()
        outcome = self.take_tick(store, lease_ms=1, hold_ms=50_000)
        self.pass_time(store, outcome.now + 2)
        lost = self.run_of(outcome, RunStatus.LOST)
        assert store.expire(*self.held(outcome), lost=lost)
        assert not store.expire(*self.held(outcome), lost=lost)
        row = self.row(store)
        assert row.token > outcome.row.token
        assert row == replace(
            outcome.row,
            token=row.token,
            holder=None,
            held_tick=None,
            since=None,
            expires=None,
            last_run=lost.to_record(),
        )
        assert store.runs() == [lost]

    def test_claim_is_ended_at_once_when_forced(self) -> None:
        store = self.store()
        outcome = self.take(store, LOCK)
        key, holder, token = self.held(outcome)
        assert not store.expire(key, new_id(), token, forced=True)
        assert not store.expire(key, holder, token - 1, forced=True)
        assert self.row(store, LOCK) == outcome.row
        assert store.expire(key, holder, token, forced=True)
        assert not store.release(key, holder, token)
        assert store.renew(key, holder, token, 1_000) is None
        assert self.take(store, LOCK).won

    def test_lost_record_that_is_there_already_stays(self) -> None:
        store = self.store()
        outcome = self.take_tick(store)
        first = self.run_of(outcome, RunStatus.LOST, detail="first")
        store.add_run(first)
        later = replace(first, detail="second")
        assert store.expire(*self.held(outcome), lost=later, forced=True)
        assert store.runs() == [first]

    def test_lost_tick_runs_again_before_any_other(self) -> None:
        store = self.store()
        outcome = self.take_tick(store, info={"attempt": 2})
        tick = outcome.row.held_tick
        assert store.expire(*self.held(outcome), rerun=True, forced=True)
        row = self.row(store)
        assert (row.rerun_tick, row.rerun_attempt) == (tick, 2)
        self.pass_time(store, row.resolved + 1)
        assert not self.take(store, tick=row.resolved + 1, seen_resolved=row.resolved).won
        assert not self.take(store, tick=row.resolved + 1, rerun=True).won
        by_hand = self.take(store)
        assert (by_hand.row.rerun_tick, by_hand.row.rerun_attempt) == (tick, 2)
        self.end(store, by_hand)
        again = self.take(store, tick=tick, rerun=True, info={"attempt": 3})
        assert again.won
        assert (again.row.held_tick, again.row.rerun_tick, again.row.rerun_attempt) == (tick, None, 2)
        assert again.row.resolved == row.resolved
        self.end(store, again)
        assert not self.take(store, tick=tick, rerun=True).won
        assert self.take_tick(store).row.rerun_attempt == 0

    # -- slots --------------------------------------------------------------------------------

    def _take_in_slot(self, store: Store, slot: int, **more: Any) -> ClaimRow:
        outcome = self.take_tick(store, slot=slot, **more)
        assert outcome.row.key == JOB.with_slot(slot)
        return outcome.row

    def test_slot_holds_the_run_and_the_jobs_own_row_its_tick(self) -> None:
        store = self.store()
        first = self._take_in_slot(store, 1, info={"attempt": 1})
        own = self.row(store)
        assert own.holder is None
        assert own.resolved == first.held_tick
        assert own.token == first.token
        assert own.info == {}
        assert first.since is not None
        assert first.expires == first.since + 60_000
        second = self._take_in_slot(store, 2)
        assert second.token > first.token
        assert {row.key.slot for row in store.poll().held} == {1, 2}

    def test_slot_and_own_row_change_both_or_not_at_all(self) -> None:
        store = self.store()
        first = self._take_in_slot(store, 1)
        own = self.row(store)
        tick, resolved = self.due_tick(store)
        refused = self.take(store, tick=tick, seen_resolved=resolved, slot=1)
        assert not refused.won
        assert refused.row == own == self.row(store)
        assert store.rows([first.key]) == [first]
        assert not self.take(store, tick=resolved, seen_resolved=resolved, slot=2).won
        assert store.ensure([JOB.with_slot(2)])[JOB.with_slot(2)].holder is None
        assert self.take(store, tick=tick, seen_resolved=resolved, slot=2).won

    def test_release_of_a_slot_writes_into_the_jobs_own_row(self) -> None:
        store = self.store()
        tick, resolved = self.due_tick(store)
        outcome = self.take(store, tick=tick, seen_resolved=resolved, slot=3)
        run = self.run_of(outcome)
        skipped = record_of("nightly", outcome.now, RunStatus.SKIPPED)
        self.end(store, outcome, run=run, resolved=tick + 2, seen_resolved=tick, skipped=skipped)
        own = self.row(store)
        assert own.last_run == run.to_record()
        assert own.last_success is not None
        assert (own.resolved, own.streak) == (tick + 2, skipped.id)
        place = store.rows([JOB.with_slot(3)])[0]
        assert (place.holder, place.last_run, place.streak) == (None, None, None)

    def test_lost_slot_runs_again_by_the_jobs_own_row(self) -> None:
        store = self.store()
        held = self._take_in_slot(store, 1, info={"attempt": 1})
        assert held.holder is not None
        lost = record_of("nightly", held.token, RunStatus.LOST, id=held.holder)
        assert store.expire(held.key, held.holder, held.token, lost=lost, rerun=True, forced=True)
        own = self.row(store)
        assert (own.rerun_tick, own.rerun_attempt) == (held.held_tick, 1)
        assert own.last_run == lost.to_record()
        place = store.rows([held.key])[0]
        assert place.holder is None
        assert place.token > held.token
        again = self.take(store, tick=held.held_tick, rerun=True, slot=2)
        assert again.won
        assert again.row.token > place.token
        assert again.row.held_tick == held.held_tick
        assert self.row(store).rerun_tick is None

    def test_tokens_of_slots_only_grow(self) -> None:
        store = self.store()
        last = 0
        for turn in range(8):
            held = self._take_in_slot(store, turn % 2 + 1)
            assert held.holder is not None
            assert held.token > last
            assert store.expire(held.key, held.holder, held.token, forced=True)
            last = store.rows([held.key])[0].token

    # -- polling ------------------------------------------------------------------------------

    def test_poll_tells_the_clock_the_revision_and_what_is_held(self) -> None:
        store = self.store()
        empty = store.poll()
        assert (empty.revision, empty.held) == (0, ())
        outcome = self.take(store)
        self.row(store, LOCK)
        doc = store.put("definition", "nightly", {})
        assert doc is not None
        poll = store.poll()
        assert poll.now >= empty.now
        assert (poll.revision, poll.held) == (doc.revision, (outcome.row,))
