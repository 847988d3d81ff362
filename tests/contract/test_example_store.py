"""The example of a store of one's own keeps the contract, as the documentation says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flask_singlejob.errors import StoreError
from flask_singlejob.stores.base import Store
from flask_singlejob.testing import StoreContract
from tests.contract.example_store import FileStore


class TestFileStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_store(self, cluster: str) -> Store:
        return FileStore(self._path, cluster=cluster)


def test_a_directory_that_cannot_be_used_is_a_store_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "absent", cluster="c")
    with pytest.raises(StoreError, match="No such file"):
        store.poll()
    store.create()
    assert store.poll().revision == 0
