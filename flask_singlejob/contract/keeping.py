"""The contract of what a store keeps: history in its order, documents and their revisions."""

from __future__ import annotations

from ..records import ClaimKey, RunStatus
from .kit import ContractKit, record_of

__all__ = ["KeepingContract"]

_FINISHED = (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.SKIPPED, RunStatus.MISSED, RunStatus.LOST)


class KeepingContract(ContractKit):
    """History and documents."""

    # -- history ------------------------------------------------------------------------------

    def test_history_is_newest_first_and_by_id_within_an_instant(self) -> None:
        store = self.store()
        runs = [record_of("a", 5_000 + i // 3, id=f"{i:032x}") for i in range(9)]
        for run in runs[::2] + runs[1::2]:
            store.add_run(run)
        assert store.runs() == runs[::-1]
        assert store.runs(limit=4) == runs[:-5:-1]

    def test_history_is_read_by_job_status_and_time(self) -> None:
        store = self.store()
        runs = [record_of("a" if i % 2 else "A", 1_000 + i, _FINISHED[i % 5]) for i in range(40)]
        for run in runs:
            store.add_run(run)
        newest = runs[::-1]
        assert store.runs("a") == [run for run in newest if run.job_id == "a"]
        assert store.runs("absent") == []
        assert store.runs(since=1_030) == [run for run in newest if run.at_ms >= 1_030]
        for wanted in ([RunStatus.LOST], [RunStatus.FAILED, RunStatus.MISSED], list(_FINISHED), []):
            assert store.runs(status=wanted) == [run for run in newest if run.status in wanted]
            assert (
                store.runs("A", status=wanted, since=1_010, limit=3)
                == [
                    run for run in newest if run.job_id == "A" and run.status in wanted and run.at_ms >= 1_010
                ][:3]
            )

    def test_pages_follow_each_other_without_gap_or_repetition(self) -> None:
        store = self.store()
        runs = [
            record_of("a", 1_000 + i // 4, _FINISHED[i % 3], id=f"{i * 7919 % 97:032x}") for i in range(30)
        ]
        for run in runs:
            store.add_run(run)
        expected = sorted(runs, key=lambda run: (run.at_ms, run.id), reverse=True)
        for status in (None, [RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.SKIPPED]):
            seen = []
            page = store.runs(status=status, limit=7)
            while page:
                seen += page
                page = store.runs(status=status, limit=7, before=(page[-1].at_ms, page[-1].id))
            assert seen == expected

    def test_record_is_found_by_its_id_as_it_was_written(self) -> None:
        store = self.store()
        run = record_of(
            "nächtlich",
            1_700_000_000_123,
            RunStatus.FAILED,
            error="Fehler: 你好\n" * 20_000,
            host="h",
            pid=3,
            token=2**45,
            attempt=2,
            duration=1.25,
            progress={"done": 1},
            detail="\x00ö",
        )
        store.add_run(run)
        assert store.run(run.id) == run
        assert store.run("absent") is None
        store.add_run(run)
        assert store.runs() == [run]

    def test_old_runs_are_pruned_by_time(self) -> None:
        store = self.store()
        runs = [record_of("a", 1_000 + i) for i in range(10)]
        for run in runs:
            store.add_run(run)
        assert store.prune(before=1_004, keep=100) == 4
        assert store.runs() == runs[:3:-1]
        assert store.prune(before=1_004, keep=100) == 0

    def test_runs_beyond_the_newest_of_each_job_are_pruned(self) -> None:
        store = self.store()
        many = [record_of("many", 1_000 + i) for i in range(12)]
        few = [record_of("few", 500 + i) for i in range(3)]
        for run in many + few:
            store.add_run(run)
        assert store.prune(before=0, keep=5) == 7
        assert store.runs("many") == many[:6:-1]
        assert store.runs("few") == few[::-1]

    def test_pruning_stops_at_its_limit_and_goes_on_when_called_again(self) -> None:
        store = self.store()
        for i in range(25):
            store.add_run(record_of("ab"[i % 2], 1_000 + i))
        deleted = [store.prune(before=1_005, keep=4, limit=6) for _ in range(4)]
        assert deleted == [6, 6, 5, 0]
        assert len(store.runs("a")) == len(store.runs("b")) == 4

    # -- documents ----------------------------------------------------------------------------

    def test_document_is_written_read_and_replaced(self) -> None:
        store = self.store()
        before = store.poll().now
        body = {"text": "ä你\x00", "list": [1, 2.5, None, True], "nested": {"a": {}}, "long": "x" * 200_000}
        doc = store.put("stored", "a", body)
        assert doc is not None
        assert (doc.kind, doc.id, doc.body, doc.deleted) == ("stored", "a", body, False)
        assert before <= doc.updated <= store.poll().now
        assert store.doc("stored", "a") == doc
        assert store.docs("stored") == [doc]
        assert store.docs("other") == []
        assert store.doc("stored", "b") is None
        second = store.put("stored", "a", {})
        assert second is not None
        assert second.revision > doc.revision
        assert store.doc("stored", "a") == second

    def test_every_change_raises_the_revision(self) -> None:
        store = self.store()
        last = store.poll().revision
        for change in range(6):
            assert store.put("k", str(change % 2), {"n": change}) is not None
            revision = store.poll().revision
            assert revision > last
            last = revision
        assert store.delete("k", "0")
        assert store.poll().revision > last

    def test_first_insert_wins(self) -> None:
        store = self.store()
        first = store.put("anchor", "a", {"n": 1}, expect=0)
        revision = store.poll().revision
        assert first is not None
        assert store.put("anchor", "a", {"n": 2}, expect=0) is None
        assert store.put("anchor", "a", {"n": 2}, expect=0, quiet=True) is None
        assert store.doc("anchor", "a") == first
        assert store.poll().revision == revision

    def test_document_changes_only_at_the_revision_that_was_seen(self) -> None:
        store = self.store()
        first = store.put("k", "a", {"n": 1})
        assert first is not None
        assert store.put("k", "a", {"n": 2}, expect=first.revision + 1) is None
        assert store.put("k", "absent", {"n": 2}, expect=first.revision) is None
        second = store.put("k", "a", {"n": 2}, expect=first.revision)
        assert second is not None
        assert store.put("k", "a", {"n": 3}, expect=first.revision) is None
        assert not store.delete("k", "a", expect=first.revision)
        assert store.doc("k", "a") == second
        assert store.delete("k", "a", expect=second.revision)

    def test_deleted_document_leaves_a_trace_for_those_who_follow(self) -> None:
        store = self.store()
        kept, gone = store.put("k", "kept", {}), store.put("k", "gone", {"n": 1})
        assert kept is not None
        assert gone is not None
        assert store.delete("k", "gone")
        assert not store.delete("k", "gone")
        assert not store.delete("k", "absent")
        assert store.doc("k", "gone") is None
        assert store.docs("k") == [kept]
        (trace,) = store.docs("k", since=gone.revision)
        assert (trace.id, trace.deleted, trace.body) == ("gone", True, {})
        assert trace.revision == store.poll().revision
        again = store.put("k", "gone", {"n": 2}, expect=0)
        assert again is not None
        assert again.revision > trace.revision
        assert store.docs("k", since=trace.revision) == [again]

    def test_documents_of_several_kinds_are_read_together(self) -> None:
        store = self.store()
        for kind in ("k", "l", "other"):
            store.put(kind, "a", {"kind": kind})
        gone = store.put("l", "gone", {})
        assert gone is not None
        assert store.delete("l", "gone")
        found = {(doc.kind, doc.id): doc.body for doc in store.docs_of(["k", "l"])}
        assert found == {("k", "a"): {"kind": "k"}, ("l", "a"): {"kind": "l"}}
        (trace,) = store.docs_of(["k", "l", "m"], since=gone.revision)
        assert (trace.kind, trace.id, trace.deleted) == ("l", "gone", True)
        assert store.docs_of(["m"]) == []
        assert store.docs_of([]) == []

    def test_only_later_changes_are_told_to_those_who_follow(self) -> None:
        store = self.store()
        docs = [store.put("k", str(i), {"i": i}) for i in range(5)]
        assert docs[2] is not None
        found = store.docs("k", since=docs[2].revision)
        assert sorted(doc.id for doc in found) == ["3", "4"]
        assert store.docs("k", since=store.poll().revision) == []

    def test_quiet_changes_take_no_revision(self) -> None:
        store = self.store()
        loud = store.put("k", "loud", {"n": 1})
        assert loud is not None
        revision = store.poll().revision
        quiet = store.put("host", "web-1", {"n": 1}, quiet=True)
        assert quiet is not None
        assert store.put("host", "web-1", {"n": 2}, quiet=True) is not None
        again = store.put("k", "loud", {"n": 2}, quiet=True)
        assert again is not None
        assert again.revision == loud.revision
        assert store.poll().revision == revision
        assert store.docs("k", since=loud.revision) == []
        assert [doc.body for doc in store.docs("host")] == [{"n": 2}]
        assert store.delete("host", "web-1", quiet=True)
        assert not store.delete("host", "web-1", quiet=True)
        assert store.docs("host") == []
        assert store.docs("host", since=1) == []
        assert store.poll().revision == revision
        assert store.put("host", "web-1", {"n": 3}, expect=0, quiet=True) is not None

    def test_document_names_are_told_apart_to_the_letter(self) -> None:
        store = self.store()
        names = ["a", "A", "a ", " a", "á", "你" * 255, "你" * 254, "a:b", "%", "a" * 900]
        for number, name in enumerate(names):
            assert store.put("k", name, {"n": number}, expect=0) is not None, name
        assert {doc.id: doc.body["n"] for doc in store.docs("k")} == {n: i for i, n in enumerate(names)}

    # -- life ---------------------------------------------------------------------------------

    def test_store_is_created_again_without_harm(self) -> None:
        store = self.store()
        self.take(store)
        store.create()
        assert len(store.poll().held) == 1

    def test_store_goes_on_after_it_was_closed(self) -> None:
        store = self.store()
        outcome = self.take(store)
        if self.shared_by_processes:
            store.close()
            store.close()
        assert store.poll().held == (outcome.row,)

    def test_store_has_a_name_and_an_identity_without_secrets(self) -> None:
        store = self.store()
        assert store.describe()
        assert store.identity
        assert store.ddl()
        assert all(finding and cure for finding, cure in store.checks())
        store.ensure([ClaimKey("job", "x")])
