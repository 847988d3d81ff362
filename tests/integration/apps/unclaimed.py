"""The basic app with a broken heart: every claim is won. The scenarios must fail on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from flask import Flask

from flask_singlejob.records import ClaimKey, ClaimOutcome, ClaimRequest, ClaimRow
from flask_singlejob.stores.base import Store

from . import basic

__all__ = ["create_app"]


def _always_won(self: Store, key: ClaimKey, request: ClaimRequest) -> ClaimOutcome:
    now = round(time.time() * 1000)
    tick = now if request.tick is None else request.tick
    row = ClaimRow(
        key=key,
        resolved=tick,
        token=now,
        holder=request.holder,
        held_tick=tick,
        since=now,
        expires=now + request.lease_ms,
        info=request.info,
    )
    return ClaimOutcome(won=True, row=row, now=now)


def _kinds(base: Any) -> Iterator[Any]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def create_app() -> Flask:
    """Return the app with the claim of every store replaced."""
    import flask_singlejob.stores.sql  # noqa: F401  # its store has to be there to be replaced

    for kind in _kinds(Store):
        if "claim" in vars(kind):
            kind.claim = _always_won
    return basic.create_app()
