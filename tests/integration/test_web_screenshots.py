"""Pictures of the page for the documentation, made from the example app when SINGLEJOB_SCREENSHOTS is 1."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from example_app import create_app
from example_app.jobs import jobs
from flask_singlejob import Run, RunStatus, current_run
from flask_singlejob.engine import Engine
from flask_singlejob.records import new_id
from tests.integration.browser import chromium, served
from tests.integration.databases import fresh_database
from tests.unit.web_kit import engine_for

pytestmark = pytest.mark.skipif(
    os.environ.get("SINGLEJOB_SCREENSHOTS") != "1",
    reason="makes pictures only when SINGLEJOB_SCREENSHOTS is 1",
)

shot = threading.Event()
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
ERROR = """Traceback (most recent call last):
  File "shop/imports.py", line 42, in import_prices
    rows = fetch(supplier)
  File "shop/suppliers.py", line 17, in fetch
    raise ConnectionError(f"{supplier.host} refused the connection")
ConnectionError: prices.example.com refused the connection
"""


def import_prices() -> None:
    """Fetch the suppliers' prices and compare them with ours."""


def backup() -> None:
    """Copy the day's orders to the archive."""


def reindex() -> None:
    """Build the search index anew."""
    current_run.progress(640, 1000, "products")
    shot.wait(60)


def record(job_id: str, tick: datetime, took: float, host: str, status: RunStatus, **more: Any) -> Run:
    ran = status not in (RunStatus.SKIPPED, RunStatus.MISSED)
    started = tick + timedelta(milliseconds=40) if ran else None
    return Run(
        id=new_id(),
        job_id=job_id,
        cause="schedule",
        scheduled_at=tick,
        status=status,
        host=host if ran else None,
        pid={"web-1": 311, "web-2": 287, "web-3": 305}[host] if ran else None,
        token=1795973000000 + random.randrange(10_000_000) if ran else None,
        started_at=started,
        finished_at=tick + timedelta(seconds=took),
        duration=took if status in (RunStatus.SUCCEEDED, RunStatus.FAILED) else None,
        **more,
    )


def tell_history(engine: Engine) -> None:
    """Add a past to the store: three hosts, one outage, a supplier that is away at times."""
    chance = random.Random(7)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    store = engine.ready_store()
    hosts = ["web-1", "web-2", "web-3"]
    for seconds in range(3500, 30, -150):
        tick = now - timedelta(seconds=seconds)
        failed = chance.random() < 0.2
        store.add_run(
            record(
                "import-prices",
                tick,
                chance.uniform(14, 58),
                chance.choice(hosts[:2]),
                RunStatus.FAILED if failed else RunStatus.SUCCEEDED,
                error=ERROR if failed else None,
            )
        )
    for seconds in range(3550, 20, -60):
        tick = now - timedelta(seconds=seconds)
        if 400 < seconds < 560:
            continue
        store.add_run(
            record("sales-report", tick, chance.uniform(2, 9), chance.choice(hosts), RunStatus.SUCCEEDED)
        )
    gone = now - timedelta(seconds=540)
    store.add_run(
        record(
            "sales-report",
            gone,
            140,
            "web-1",
            RunStatus.MISSED,
            reason="store_away",
            count=3,
            last_scheduled_at=gone + timedelta(seconds=120),
        )
    )
    for seconds in range(3400, 100, -300):
        tick = now - timedelta(seconds=seconds)
        for host in hosts:
            store.add_run(
                record("clean-temp", tick, chance.uniform(5, 22), host, RunStatus.SUCCEEDED, scope="host")
            )
    store.add_run(
        record("reindex", now - timedelta(seconds=800), 210, "web-3", RunStatus.LOST, reason="process_died")
    )
    skipped = now - timedelta(seconds=700)
    store.add_run(
        record(
            "reindex",
            skipped,
            60,
            "web-1",
            RunStatus.SKIPPED,
            reason="held",
            count=2,
            last_scheduled_at=skipped + timedelta(seconds=120),
        )
    )
    defines = {id: definition.fingerprint for id, definition in engine.catalog.defined.items()}
    for number, host in enumerate(hosts[1:], 1):
        body = {
            "host": host,
            "pid": (311, 287, 305)[number],
            "owner_since": (now - timedelta(hours=5 + 3 * number)).isoformat(),
            "offset_ms": (12, -4, 31)[number],
            "zone": "Europe/Berlin",
            "beat_ms": 600_000,
            "version": "0.1.0",
            "workers": 4,
            "defines": {id: mark for id, mark in defines.items() if id != "refresh-cache"},
        }
        store.put("host", f"{host}@kernel", body, quiet=True)


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with fresh_database("postgresql") as url:
        yield url


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> Iterator[str]:
    """The example app, served, with jobs and a past, and a run that is going on."""
    for name, value in (
        ("SHOP_INSTANCE", str(tmp_path)),
        ("FLASK_SINGLEJOB_STORE", database),
        ("FLASK_SCHEDULER_TIMEZONE", "Europe/Berlin"),
        ("FLASK_SINGLEJOB_DASHBOARD", "true"),
        ("FLASK_SINGLEJOB_GUARD", "public"),
        ("FLASK_SINGLEJOB_CLUSTER", "shop"),
        ("FLASK_SINGLEJOB_HOST_ID", "web-1"),
    ):
        monkeypatch.setenv(name, value)
    app = create_app()
    engine = engine_for(app)
    for id, function, trigger in (
        ("import-prices", import_prices, {"trigger": "interval", "seconds": 150}),
        ("reindex", reindex, {"trigger": "interval", "minutes": 2}),
        ("backup", backup, {"trigger": "cron", "hour": 3}),
    ):
        engine.api.add_job(id, function, persist=False, **trigger)
    tell_history(engine)
    with app.app_context():
        jobs.run_job("import-prices")
        jobs.run_job("sales-report")
        jobs.start(force=True)
        jobs.run_job("reindex", wait=False)
    deadline = time.monotonic() + 60
    while not (engine.manager.running() and len(engine.store.docs("host")) == 3):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with served(app) as url:
        yield f"{url}/singlejob/"
    shot.set()
    engine.shutdown()


def test_pictures_for_the_documentation_are_made(address: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:

        def shoot(
            name: str, path: str, *, width: int = 1180, height: int = 860, scheme: Any = "light"
        ) -> None:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                timezone_id="UTC",
                reduced_motion="reduce",
            )
            page = context.new_page()
            answer = page.goto(f"{address}{path}")
            assert answer is not None
            assert answer.status == 200
            page.screenshot(path=IMAGES / f"{name}.png")
            context.close()

        shoot("overview", "", height=980)
        shoot("timeline", "timeline?span=1h", height=560)
        shoot("jobs", "jobs", height=640)
        shoot("job", "job?id=import-prices", height=980)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}runs?status=failed")
        failed = page.locator("tbody a[href*='run?id']").first.get_attribute("href")
        assert failed is not None
        context.close()
        shoot("run", failed.rpartition("/")[2], height=900)
        shoot("dark", "", height=980, scheme="dark")
        shoot("phone", "", width=390, height=844)
    for name in ("overview", "timeline", "jobs", "job", "run", "dark", "phone"):
        assert 5_000 < (IMAGES / f"{name}.png").stat().st_size < 400_000
