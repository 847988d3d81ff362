"""Receivers hear of their own app only, and none of them can harm the sender."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from blinker import NamedSignal
from flask import Flask, current_app

from flask_singlejob import signals
from flask_singlejob.signals import run_failed, send

NAMES = [
    "owner_elected",
    "owner_resigned",
    "run_started",
    "run_succeeded",
    "run_failed",
    "run_skipped",
    "run_missed",
    "run_lost",
    "run_overran",
    "lease_lost",
]


@pytest.fixture(autouse=True)
def _no_receiver_is_left_behind() -> Iterator[None]:
    yield
    run_failed._clear_state()


def test_every_signal_is_there_under_its_name() -> None:
    assert {name for name in signals.__all__ if name != "send"} == set(NAMES)
    found = [getattr(signals, name) for name in NAMES]
    assert all(isinstance(signal, NamedSignal) for signal in found)
    assert len({signal.name for signal in found}) == len(NAMES)


def test_receiver_gets_the_app_itself_and_the_arguments() -> None:
    app, heard = Flask("shop"), []

    def receiver(sender: Flask, **arguments: Any) -> None:
        heard.append((sender, arguments))

    run_failed.connect(receiver, sender=app)
    with app.app_context():
        send(run_failed, current_app, run=1, exception=2)
    assert heard == [(app, {"run": 1, "exception": 2})]
    assert type(heard[0][0]) is Flask


def test_receiver_of_one_app_hears_nothing_of_another() -> None:
    shop, blog, heard = Flask("shop"), Flask("blog"), []

    def receiver(sender: Flask, **arguments: Any) -> None:
        heard.append(sender)

    run_failed.connect(receiver, sender=shop)
    send(run_failed, blog, run=1)
    assert heard == []
    send(run_failed, shop, run=1)
    assert heard == [shop]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_receiver_that_raises_is_logged_and_the_others_are_called(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    app, heard = Flask("shop"), []

    def bad(sender: Flask, **arguments: Any) -> None:
        heard.append("bad")
        raise error

    def bad_too(sender: Flask, **arguments: Any) -> None:
        heard.append("bad too")
        raise error

    run_failed.connect(bad, sender=app)
    run_failed.connect(bad_too, sender=app)
    with caplog.at_level(logging.ERROR):
        send(run_failed, app, run=1)
    assert sorted(heard) == ["bad", "bad too"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "run-failed" in caplog.text
    assert "Traceback" in caplog.text


def test_interruption_from_outside_goes_on_after_all_were_called() -> None:
    app, heard = Flask("shop"), []

    def first(sender: Flask, **arguments: Any) -> None:
        heard.append(1)
        raise KeyboardInterrupt

    def second(sender: Flask, **arguments: Any) -> None:
        heard.append(2)
        raise KeyboardInterrupt

    run_failed.connect(first, sender=app)
    run_failed.connect(second, sender=app)
    with pytest.raises(KeyboardInterrupt):
        send(run_failed, app, run=1)
    assert sorted(heard) == [1, 2]


def test_receiver_may_be_a_coroutine_function(monkeypatch: pytest.MonkeyPatch) -> None:
    app, heard = Flask("shop"), []
    # In place of Flask's own ensure_sync, which needs asgiref.
    monkeypatch.setattr(app, "ensure_sync", lambda func: lambda *args, **kw: asyncio.run(func(*args, **kw)))

    async def receiver(sender: Flask, **arguments: Any) -> None:
        heard.append(arguments)

    run_failed.connect(receiver, sender=app)
    send(run_failed, app, run=1)
    assert heard == [{"run": 1}]


def test_receiver_is_held_weakly() -> None:
    app, heard = Flask("shop"), []

    def connect() -> None:
        def receiver(sender: Flask, **arguments: Any) -> None:
            heard.append(sender)

        run_failed.connect(receiver, sender=app)

    connect()
    send(run_failed, app, run=1)
    assert heard == []


def test_muted_signal_calls_nobody() -> None:
    app, heard = Flask("shop"), []

    def receiver(sender: Flask, **arguments: Any) -> None:
        heard.append(sender)

    run_failed.connect(receiver, sender=app)
    with run_failed.muted():
        send(run_failed, app, run=1)
    assert heard == []
