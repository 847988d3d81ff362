"""A headless Chromium for tests of the page, and axe-core to look for barriers; skips with the reason without."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from flask import Flask
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

__all__ = ["barriers", "chromium", "served", "watch"]

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _without(reason: str) -> NoReturn:
    """Skip; where everything has to be there, fail."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"CI is set and {reason}")
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give a browser with an empty profile of its own."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _without("playwright is not installed (pip install playwright)")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        _without("there is no Chromium (apt install chromium, or set CHROMIUM to its path)")
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            headless=True,
            args=list(FLAGS),
            env={**{key: value for key, value in os.environ.items() if key != "DISPLAY"}, "HOME": home},
        )
        yield browser
        browser.close()


@contextmanager
def served(app: Flask) -> Iterator[str]:
    """Serve an app in a thread of this process, and give its address."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def watch(page: Page) -> list[str]:
    """Return a list that takes every error of the page's scripts and of its policy, as it comes."""
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on(
        "console",
        lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None,
    )

    def dismiss(dialog: Dialog) -> None:
        troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    return troubles


def _axe_source() -> str:
    given = os.environ.get("AXE_JS")
    if given:
        return Path(given).read_text()
    try:
        found = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js")
    except ImportError:
        _without("axe-core is not there (pip install axe-playwright-python, or set AXE_JS to axe.min.js)")
    return found.read_text()


def barriers(page: Page, *rules: str) -> list[str]:
    """Return what axe-core finds on a page by these rules, or by all, one line each."""
    page.evaluate(_axe_source())
    chosen = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    found: dict[str, Any] = page.evaluate(
        "chosen => axe.run(document, chosen)", {"resultTypes": ["violations"], **chosen}
    )
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]
