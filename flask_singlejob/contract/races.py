"""The contract under contention: threads and processes that want the same thing at the same time."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ..records import ClaimKey, ClaimRequest, RunStatus, new_id
from ..stores.base import Store
from .kit import JOB, LOCK, ContractKit, record_of

__all__ = ["RaceContract"]

_SECONDS = 120.0


def _together(works: list[Callable[[], None]]) -> None:
    """Do the works in threads that start at the same time; an error in one is raised here."""
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def body(work: Callable[[], None]) -> None:
        try:
            barrier.wait(timeout=_SECONDS)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)
        assert not thread.is_alive(), "a thread does not end"
    if errors:
        raise errors[0]


class RaceContract(ContractKit):
    """One winner, whatever the number of those who try."""

    processes = 4
    ticks = 200

    def _race_for_ticks(self, store: Store, base: int, count: int) -> list[int]:
        """Try for each tick in turn, as an owner does; returns those that were won."""
        won = []
        for tick in range(base + 1, base + count + 1):
            deadline = time.monotonic() + _SECONDS
            row = store.rows([JOB])[0]
            while row.resolved < tick:
                assert time.monotonic() < deadline, "a tick is neither won nor settled"
                if row.holder is None:
                    request = ClaimRequest(
                        holder=new_id(), lease_ms=60_000, tick=tick, seen_resolved=row.resolved
                    )
                    outcome = store.claim(JOB, request)
                    if outcome.won:
                        won.append(tick)
                        run = record_of(JOB.name, tick, id=request.holder)
                        assert store.release(JOB, request.holder, outcome.row.token, run=run)
                        break
                row = store.rows([JOB])[0]
        return won

    def _lay_ticks(self, store: Store, count: int) -> int:
        """Make so many ticks of the job due; returns the instant before the first."""
        row = self.row(store)
        base = row.resolved - 10 * count
        assert store.settle(JOB, row.resolved, base)
        return base

    def test_each_tick_has_one_winner_among_threads(self) -> None:
        store = self.store()
        base = self._lay_ticks(store, 50)
        won: list[int] = []
        stores = [self.store() for _ in range(6)]
        _together([lambda one=one: won.extend(self._race_for_ticks(one, base, 50)) for one in stores])  # type: ignore[misc]
        assert sorted(won) == list(range(base + 1, base + 51))
        assert len(store.runs(limit=1_000)) == 50

    def test_each_tick_has_one_winner_among_processes(self) -> None:
        if not self.shared_by_processes:
            return
        store = self.store()
        base = self._lay_ticks(store, self.ticks)

        def body(number: int) -> object:
            return self._race_for_ticks(self.store(), base, self.ticks)

        won = [tick for ticks in self._in_processes(self.processes, body) for tick in ticks]  # type: ignore[attr-defined]
        assert Counter(won) == Counter(range(base + 1, base + self.ticks + 1))
        assert len(store.runs(limit=1_000)) == self.ticks

    def test_many_processes_create_an_empty_store_at_once(self) -> None:
        if not self.shared_by_processes:
            return

        def body(number: int) -> object:
            store = self.make_store(self._cluster)
            store.create()
            assert store.put("host", str(number), {}) is not None
            store.close()
            return number

        assert sorted(self._in_processes(16, body)) == list(range(16))  # type: ignore[type-var]
        assert len(self.store().docs("host")) == 16

    def _in_processes(self, count: int, body: Callable[[int], object]) -> list[object]:
        """Call the body in forked processes at the same time; returns what each gave."""
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(count)
        with tempfile.TemporaryDirectory() as directory:

            def child(number: int) -> None:
                for store in self._made:
                    store.after_fork()
                try:
                    barrier.wait(timeout=_SECONDS)
                    answer = {"value": body(number)}
                except BaseException:
                    answer = {"error": traceback.format_exc()}
                Path(directory, str(number)).write_text(json.dumps(answer))

            children = [context.Process(target=child, args=(number,)) for number in range(count)]
            for process in children:
                process.start()
            for process in children:
                process.join(_SECONDS)
                assert process.exitcode == 0, f"a process ended with {process.exitcode}"
            answers = [json.loads(Path(directory, str(n)).read_text()) for n in range(count)]
        failed = [answer["error"] for answer in answers if "error" in answer]
        assert not failed, failed[0]
        return [answer["value"] for answer in answers]

    def test_lock_loses_no_count(self) -> None:
        counter = {"value": 0}
        stores = [self.store() for _ in range(5)]

        def work(store: Store) -> None:
            done = 0
            deadline = time.monotonic() + _SECONDS
            while done < 15:
                assert time.monotonic() < deadline
                outcome = self.take(store, LOCK)
                if outcome.won:
                    seen = counter["value"]
                    time.sleep(0.001)
                    counter["value"] = seen + 1
                    self.end(store, outcome)
                    done += 1

        _together([lambda one=one: work(one) for one in stores])  # type: ignore[misc]
        assert counter["value"] == 75

    def test_slots_never_hold_more_runs_than_there_are(self) -> None:
        base = self._lay_ticks(self.store(), 40)
        stores = [self.store() for _ in range(5)]
        won: list[int] = []
        running: set[int] = set()
        most = [0]

        def work(store: Store) -> None:
            deadline = time.monotonic() + _SECONDS
            while (row := store.rows([JOB])[0]).resolved < base + 40:
                assert time.monotonic() < deadline
                for slot in (1, 2):
                    outcome = self.take(store, tick=row.resolved + 1, seen_resolved=row.resolved, slot=slot)
                    if outcome.won:
                        assert outcome.row.held_tick is not None
                        running.add(outcome.row.token)
                        most[0] = max(most[0], len(running))
                        won.append(outcome.row.held_tick)
                        time.sleep(0.002)
                        running.discard(outcome.row.token)
                        self.end(store, outcome)
                        break

        _together([lambda one=one: work(one) for one in stores])  # type: ignore[misc]
        assert sorted(won) == list(range(base + 1, base + 41))
        assert most[0] <= 2

    def test_ended_lease_is_ended_by_one_of_many(self) -> None:
        store = self.store()
        outcome = self.take_tick(store, lease_ms=1)
        self.pass_time(store, outcome.now + 2)
        lost = self.run_of(outcome, RunStatus.LOST)
        said: list[bool] = []
        stores = [self.store() for _ in range(6)]
        _together(
            [lambda one=one: said.append(one.expire(*self.held(outcome), lost=lost)) for one in stores]  # type: ignore[misc]
        )
        assert sorted(said) == [False] * 5 + [True]
        assert store.runs() == [lost]

    def test_tick_is_settled_by_one_of_many(self) -> None:
        store = self.store()
        seen = self.row(store).resolved
        records = [record_of("nightly", seen, RunStatus.MISSED) for _ in range(6)]
        said: list[str] = []

        def work(one: Store, number: int) -> None:
            if one.settle(JOB, seen, seen + 5, records[number]):
                said.append(records[number].id)

        stores = [self.store() for _ in range(6)]
        _together([lambda i=i, one=one: work(one, i) for i, one in enumerate(stores)])  # type: ignore[misc]
        assert len(said) == 1
        assert [run.id for run in store.runs()] == said
        assert self.row(store).streak == said[0]

    def test_first_insert_wins_among_many(self) -> None:
        stores = [self.store() for _ in range(6)]
        for turn in range(5):
            name = f"anchor {turn}"
            won: list[int] = []

            def work(one: Store, number: int, name: str = name, won: list[int] = won) -> None:
                if one.put("anchor", name, {"by": number}, expect=0) is not None:
                    won.append(number)

            _together([lambda i=i, one=one: work(one, i) for i, one in enumerate(stores)])  # type: ignore[misc]
            assert len(won) == 1
            doc = stores[0].doc("anchor", name)
            assert doc is not None
            assert doc.body == {"by": won[0]}

    def test_rows_are_made_once_by_many(self) -> None:
        stores = [self.store() for _ in range(6)]
        keys = [ClaimKey("job", f"job {i}") for i in range(40)]
        found: list[dict[ClaimKey, object]] = []

        def work(one: Store, number: int) -> None:
            found.append(dict(one.ensure(keys[number:] + keys[:number])))

        _together([lambda i=i, one=one: work(one, i) for i, one in enumerate(stores)])  # type: ignore[misc]
        assert len(found) == 6
        assert all(rows == found[0] for rows in found)

    def test_no_change_is_missed_by_who_follows_the_revision(self) -> None:
        stores = [self.store() for _ in range(4)]
        reader = self.store()
        written = threading.Event()
        seen: set[str] = set()

        def write(one: Store, number: int) -> None:
            for turn in range(25):
                assert one.put("k", f"{number}-{turn}", {}) is not None

        def read() -> None:
            last = 1
            while True:
                over = written.is_set()
                for doc in reader.docs("k", since=last):
                    seen.add(doc.id)
                    last = max(last, doc.revision)
                if over:
                    return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        _together([lambda i=i, one=one: write(one, i) for i, one in enumerate(stores)])  # type: ignore[misc]
        written.set()
        thread.join(_SECONDS)
        assert seen == {f"{number}-{turn}" for number in range(4) for turn in range(25)}
