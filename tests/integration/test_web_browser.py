"""The page in a real browser: every page and action, hostile texts, other sites, barriers, live looks."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, abort

from flask_singlejob import RunStatus, SingleJob, current_run
from flask_singlejob.records import ClaimKey
from tests.integration.browser import barriers, chromium, served, watch
from tests.unit.web_kit import HOSTILE, ended, engine_for, take_store_away

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SECONDS = 20_000
PATHS = (
    "",
    "timeline",
    "jobs",
    "job?id=nightly",
    "job?id=bad",
    "runs",
    "locks",
    "confirm?action=pause&id=nightly",
)
LONG = "ValueError: " + "<img src=x onerror=window.hacked=3>" * 300


@dataclass
class Site:
    """An app that is served, with an owner of its schedule in this process."""

    app: Flask
    url: str
    allowed: threading.Event
    slow: threading.Event
    runs: list[str]

    def page(self, path: str = "") -> str:
        """Return the address of a page."""
        return f"{self.url}/singlejob/{path}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of this file."""
    with chromium() as found:
        yield found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site of the test's own, with an owner that runs jobs."""
    with made_site(tmp_path, owned=True) as found:
        yield found


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site on which nothing happens, for tests that only look."""
    with made_site(tmp_path_factory.mktemp("still"), owned=False) as found:
        yield found


@contextmanager
def made_site(tmp_path: Path, *, owned: bool) -> Iterator[Site]:
    """A site with good, bad and hostile jobs, and some history."""
    app = Flask("shop", instance_path=str(tmp_path))
    allowed, slow, runs = threading.Event(), threading.Event(), []
    allowed.set()

    def guard(view: Any) -> Any:
        def guarded(**arguments: Any) -> Any:
            if not allowed.is_set():
                abort(403, "Nobody is let in.")
            return view(**arguments)

        return guarded

    app.config.update(
        SINGLEJOB_DASHBOARD=True,
        SINGLEJOB_GUARD=guard,
        SINGLEJOB_HOST_ID="web-1",
        SINGLEJOB_STORE=f"sqlite:///{tmp_path / 'store.sqlite3'}",
        SINGLEJOB_POLL_INTERVAL=0.2,
    )
    jobs = SingleJob(app)

    @jobs.task("cron", hour=3, id="nightly")
    def nightly() -> None:
        """Tidy up the shop."""
        runs.append(current_run.id)

    @jobs.task("interval", hours=5, id="bad")
    def bad() -> None:
        raise ValueError("<script>window.hacked=2</script>\u202e")

    @jobs.task("interval", hours=7, id=HOSTILE)
    def hostile() -> None:
        runs.append(current_run.id)

    @jobs.task("interval", hours=9, id="slow")
    def slow_job() -> None:
        current_run.progress(3, 10, "rows")
        slow.wait(30)

    store = engine_for(app).ready_store()
    for number in range(40):
        store.add_run(ended("nightly", ago=30 + number * 20, duration=0.2 + number % 7, host="web-1"))
    store.add_run(
        ended("bad", RunStatus.FAILED, ago=100, error=f"Traceback (most recent call last):\n{LONG}")
    )
    store.add_run(ended("bad", RunStatus.SKIPPED, ago=80, reason="held", count=7))
    store.add_run(
        ended(HOSTILE, RunStatus.LOST, ago=60, reason="process_died", detail="<b>gone</b>", duration=None)
    )
    store.add_run(ended("nightly", RunStatus.MISSED, ago=40, reason="no_owner"))
    if owned:
        jobs.start(force=True)
    with served(app) as url:
        yield Site(app, url, allowed, slow, runs)
    slow.set()
    jobs.shutdown()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A visitor in Berlin."""
    found = browser.new_context(timezone_id="Europe/Berlin", viewport={"width": 1240, "height": 800})
    found.set_default_timeout(SECONDS)
    yield found
    found.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which nothing may go wrong unseen."""
    found = context.new_page()
    troubles = watch(found)
    yield found
    assert troubles == []
    if not found.is_closed() and found.url.startswith("http"):
        assert found.evaluate("window.hacked") is None


def confirm(page: Page, verb: str) -> None:
    """Press a button's link, and say yes."""
    page.get_by_role("link", name=verb, exact=True).first.click()
    page.get_by_role("button", name=re.compile(verb.split()[0])).last.click()


# -- pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing(still: Site, browser: Browser, path: str) -> None:
    context = browser.new_context(timezone_id="Europe/Berlin", reduced_motion="reduce")
    page = context.new_page()
    page.goto(still.page(path), timeout=SECONDS)
    assert barriers(page) == []
    page.emulate_media(color_scheme="dark")
    assert barriers(page, "color-contrast") == []
    context.close()


def test_pages_fit_a_phone(still: Site, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = context.new_page()
    for path in PATHS:
        page.goto(still.page(path), timeout=SECONDS)
        widest = page.evaluate("document.documentElement.scrollWidth")
        assert widest <= 360, path
    context.close()


def test_pages_are_whole_without_javascript(still: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in PATHS:
        page.goto(still.page(path), timeout=SECONDS)
        assert page.get_by_role("heading", level=1).is_visible(), path
        assert "UTC" in page.inner_text("body"), path
    context.close()


def test_action_is_done_without_javascript(site: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.page("job?id=nightly"), timeout=SECONDS)
    confirm(page, "Pause")
    assert page.get_by_text("The job is paused on every host.").is_visible()
    context.close()
    job, _ = engine_for(site.app).manager.job("nightly")
    assert job is not None
    assert job.paused


def test_times_are_shown_in_the_viewers_zone_too(still: Site, page: Page) -> None:
    page.goto(still.page("job?id=nightly"))
    tick = page.locator("#coming time").first
    utc = tick.inner_text()
    assert "03:00:00 UTC" in utc
    assert re.search(r"0[45]:00:00 here", page.locator("#coming .local").first.inner_text())
    assert "Europe/Berlin" in page.locator("#zone").inner_text()


def test_everything_is_reached_and_done_by_keyboard(site: Site, page: Page) -> None:
    page.goto(site.page("job?id=nightly"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == "Pause":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/confirm?**")
    for _ in range(40):
        page.keyboard.press("Tab")
        if (
            page.evaluate("document.activeElement.tagName + document.activeElement.textContent")
            == "BUTTONPause"
        ):
            break
    page.keyboard.press("Enter")
    page.get_by_text("The job is paused on every host.").wait_for()


def test_bar_of_the_timeline_opens_its_run(still: Site, page: Page) -> None:
    page.goto(still.page("timeline"))
    # Other signs may lie over it: what is asked for is what a click on it does.
    page.locator("rect.s-failed[data-run]").first.dispatch_event("click")
    page.wait_for_url("**/run?id=*")
    assert page.locator("h1 .badge").inner_text() == "failed"


def test_search_and_states_narrow_the_jobs(still: Site, page: Page) -> None:
    page.goto(still.page("jobs"))
    assert page.locator("tbody tr").count() == 4
    page.get_by_label("Search").fill("nightly")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**q=nightly**")
    assert page.locator("tbody tr").count() == 1
    page.goto(still.page("jobs"))
    page.get_by_role("radio", name="paused").check()
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**state=paused**")
    assert page.get_by_text("No job fits").is_visible()


# -- actions ----------------------------------------------------------------------------------------------


def test_run_now_runs_the_job_once_and_shows_it(site: Site, page: Page) -> None:
    page.goto(site.page("job?id=nightly"))
    confirm(page, "Run now")
    page.get_by_text("The run was handed to the owners").wait_for()
    page.get_by_role("cell", name="manual").wait_for()
    assert len(site.runs) == 1


def test_pause_and_resume_are_seen_on_the_page(site: Site, page: Page) -> None:
    page.goto(site.page("job?id=nightly"))
    confirm(page, "Pause")
    page.get_by_text("It is paused.").wait_for()
    confirm(page, "Resume")
    page.get_by_text("The job is resumed on every host.").wait_for()
    page.get_by_role("link", name="Pause", exact=True).wait_for()


def test_whole_cluster_is_paused_and_resumed(site: Site, page: Page) -> None:
    page.goto(site.page())
    page.get_by_role("link", name="Pause all").click()
    page.get_by_role("button", name="Pause all jobs").click()
    page.get_by_text("The whole cluster is paused:").wait_for()
    page.get_by_role("link", name="Resume all").click()
    page.get_by_role("button", name="Resume all jobs").click()
    page.get_by_text("The whole cluster is resumed.").wait_for()
    assert not engine_for(site.app).manager.paused_all()


def test_unlock_ends_the_claim_that_was_looked_at(site: Site, page: Page) -> None:
    engine = engine_for(site.app)
    with site.app.app_context(), engine.locks.lock("import <i>"):
        page.goto(site.page("locks"))
        page.get_by_role("row").filter(has_text="import <i>").get_by_role("link", name="Unlock").click()
        page.get_by_role("button", name="Unlock").click()
        page.get_by_text("The claim was ended.").wait_for()
        (row,) = engine.store.rows([ClaimKey("lock", "import <i>")])
        assert row.holder is None


def test_asking_and_doing_nothing_does_nothing(still: Site, page: Page) -> None:
    page.goto(still.page("job?id=nightly"))
    page.get_by_role("link", name="Pause", exact=True).click()
    page.get_by_role("link", name="Do nothing").click()
    page.wait_for_url("**/job?id=nightly")
    job, _ = engine_for(still.app).manager.job("nightly")
    assert job is not None
    assert not job.paused


def test_action_with_a_wrong_token_is_asked_again_and_then_done(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.page("confirm?action=pause&id=nightly"))
    page.evaluate("document.querySelector('[name=singlejob_token]').value = 'wrong'")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Confirm once more").wait_for()
    job, _ = engine_for(site.app).manager.job("nightly")
    assert job is not None
    assert not job.paused
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("The job is paused on every host.").wait_for()


def test_form_on_another_site_is_refused(still: Site, context: BrowserContext) -> None:
    token_page = context.new_page()
    token_page.goto(still.page("confirm?action=pause&id=nightly"))
    token = token_page.locator("[name=singlejob_token]").get_attribute("value")
    other = Flask("evil")
    other.add_url_rule(
        "/",
        view_func=lambda: (
            f"""<form method=post action="{still.page("act")}"><input name=action value=pause>
        <input name=id value=nightly><input name=singlejob_token value="{token}"><button>Win a prize</button></form>"""
        ),
    )
    with served(other) as url:
        page = context.new_page()
        page.goto(url.replace("127.0.0.1", "localhost"))
        with page.expect_response("**/singlejob/act") as answer:
            page.get_by_role("button").click()
        assert answer.value.status == 403
    job, _ = engine_for(still.app).manager.job("nightly")
    assert job is not None
    assert not job.paused


def test_page_is_not_shown_in_a_frame_of_another_site(still: Site, context: BrowserContext) -> None:
    other = Flask("evil")
    other.add_url_rule("/", view_func=lambda: f'<iframe src="{still.page()}"></iframe>')
    with served(other) as url:
        page = context.new_page()
        page.goto(url)
        assert page.frames[-1].get_by_text("Overview").count() == 0


def test_nobody_is_let_in_without_the_guards_leave(still: Site, context: BrowserContext) -> None:
    page = context.new_page()
    still.allowed.clear()
    try:
        for path in PATHS:
            answer = page.goto(still.page(path))
            assert answer is not None
            assert answer.status == 403
    finally:
        still.allowed.set()


# -- hostile texts ----------------------------------------------------------------------------------------


def test_hostile_id_is_text_on_every_page_and_its_actions_work(site: Site, page: Page) -> None:
    for path in ("", "timeline", "jobs", "runs", "locks"):
        page.goto(site.page(path))
        assert page.evaluate("window.hacked") is None
    page.goto(site.page("jobs"))
    page.locator("tbody a.id", has_text="a/b").first.click()
    page.wait_for_url("**/job?**")
    assert "<script>window.hacked=1</script>" in page.locator("h1").inner_text()
    confirm(page, "Pause")
    page.get_by_text("It is paused.").wait_for()
    confirm(page, "Resume")
    confirm(page, "Run now")
    page.get_by_role("cell", name="manual").wait_for()
    assert len(site.runs) == 1


def test_hostile_error_is_text_and_stays_in_its_box(still: Site, page: Page) -> None:
    run = engine_for(still.app).store.runs("bad", status=[RunStatus.FAILED])[0]
    page.goto(still.page(f"run?id={run.id}"))
    assert LONG in page.locator("pre.error").inner_text()
    assert page.locator("pre img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1240


# -- live -------------------------------------------------------------------------------------------------


def test_page_shows_what_happens_while_it_is_open(site: Site, page: Page) -> None:
    page.goto(site.page())
    engine_for(site.app).store.add_run(ended("bad", RunStatus.FAILED, ago=0, error="Boom: it broke just now"))
    page.get_by_text("Boom: it broke just now").first.wait_for()


def test_running_job_shows_its_progress_live(site: Site, page: Page) -> None:
    page.goto(site.page("job?id=slow"))
    confirm(page, "Run now")
    page.get_by_text("3 of 10").first.wait_for()
    site.slow.set()
    page.locator("#runs .badge.succeeded").first.wait_for()


def looks(page: Page) -> list[str]:
    """Return a list that takes the page's own requests, as they come."""
    found: list[str] = []
    page.on("request", lambda sent: found.append(sent.url) if sent.resource_type == "fetch" else None)
    return found


def hide(page: Page, hidden: bool) -> None:
    """Tell the page that its tab is hidden, or seen again."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


def test_looking_stops_while_the_tab_is_hidden_or_live_is_off(still: Site, page: Page) -> None:
    page.clock.install()
    page.goto(still.page("locks"))
    found = looks(page)
    with page.expect_response(lambda answer: "locks" in answer.url):
        page.clock.fast_forward(6000)
    hide(page, True)
    page.clock.fast_forward(600_000)
    page.wait_for_timeout(0)
    assert len(found) == 1
    with page.expect_response(lambda answer: "locks" in answer.url):
        hide(page, False)
    assert len(found) == 2
    page.get_by_role("button", name="Live").click()
    page.clock.fast_forward(600_000)
    assert len(found) == 2
    with page.expect_response(lambda answer: "locks" in answer.url):
        page.get_by_role("button", name="Live").click()


def test_focus_stays_where_it_was_when_the_page_looks_again(site: Site, page: Page) -> None:
    page.goto(site.page())
    link = page.locator("#coming a").first
    link.focus()
    name = link.inner_text()
    engine_for(site.app).store.add_run(ended("bad", RunStatus.FAILED, ago=0, error="Boom: it broke just now"))
    page.get_by_text("Boom: it broke just now").first.wait_for()
    assert page.evaluate("document.activeElement.innerText") == name


def test_store_that_goes_away_is_told_and_the_page_comes_back(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    engine = engine_for(site.app)
    real = engine.store
    take_store_away(site.app)
    answer = page.goto(site.page())
    assert answer is not None
    assert answer.status == 503
    assert page.get_by_role("heading", name="The store is away").is_visible()
    assert barriers(page) == []
    engine._store = real
    page.get_by_role("heading", name="Hosts").wait_for()


def test_page_that_was_open_keeps_what_was_known_and_says_so(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.page())
    page.locator("#coming a", has_text="nightly").wait_for()
    real = engine_for(site.app).store
    take_store_away(site.app)
    page.locator("#notice", has_text="The store is away").wait_for()
    assert page.locator("#coming a", has_text="nightly").is_visible()
    engine_for(site.app)._store = real
    page.locator("#notice").wait_for(state="hidden")
