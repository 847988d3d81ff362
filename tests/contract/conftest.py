"""The contract's own asserts explain themselves; servers that were started for it end with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("flask_singlejob.contract")


@pytest.fixture(scope="session", autouse=True)
def _private_servers() -> Iterator[None]:
    yield
    from tests.services import stop_private_servers

    stop_private_servers()
