"""The web page: a blueprint of guarded views over ``pages.py`` and ``actions.py``.

Owns routes, answers and headers. Every page and action lies behind the guard; every action is a POST that
asked before, carries a token and comes from this site.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, abort, redirect, request, send_from_directory, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from ..errors import ConfigError, SingleJobError, StoreError
from ..records import RunStatus
from ..status import election_dict, store_trouble
from . import pages
from .actions import ACTIONS, Action, Refusal, perform
from .asking import ask_within
from .guard import (
    CSRF_FIELD,
    apply_guard,
    audit,
    csrf_token,
    csrf_valid,
    keep_csrf_cookie,
    read_only,
    require_safe,
)
from .pages import JobGone, RunGone
from .show import environment, shown
from .timeline import SPANS

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["register_dashboard"]

logger = logging.getLogger(__name__)

#: A page waits so long for the store, seconds.
PAGE_SECONDS = 5.0
#: The page looks again so often while it is seen, seconds.
LIVE_SECONDS = 5
NAME = "singlejob"
STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers would send "Origin: null" with the forms.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def register_dashboard(app: Flask, engine: Engine, extension: Any) -> None:
    """Add the page to the app.

    :param extension: not needed here; every part that is served over HTTP is given it.
    :raises ConfigError: when the guard is no view decorator.
    """
    blueprint = Blueprint(NAME, __name__)
    board = Dashboard(engine)
    for rule, name, method in (
        ("/", "overview", "GET"),
        ("/timeline", "timeline", "GET"),
        ("/jobs", "jobs", "GET"),
        ("/job", "job", "GET"),
        ("/runs", "runs", "GET"),
        ("/run", "run", "GET"),
        ("/locks", "locks", "GET"),
        ("/confirm", "confirm", "GET"),
        ("/act", "act", "POST"),
        ("/static/<path:filename>", "asset", "GET"),
    ):
        view = _named(getattr(board, name), name)
        blueprint.add_url_rule(
            rule,
            endpoint=name,
            view_func=_named(apply_guard(view, engine.settings), name),
            methods=[method],
            strict_slashes=False,
        )
    app.register_blueprint(blueprint, url_prefix=engine.settings.dashboard_prefix)


def _named(view: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a view that guards may treat as any function: with a name, and attributes to set."""
    if hasattr(view, "__dict__") and not hasattr(view, "__self__"):
        return view

    def named(**arguments: Any) -> Any:
        return view(**arguments)

    named.__name__ = named.__qualname__ = name
    return named


def _before() -> tuple[int, str] | None:
    """Return the place in history that the request names."""
    text = request.args.get("before", "")
    if not text:
        return None
    at, _, run_id = text.partition(".")
    if not at.isdecimal() or len(at) > 15 or not run_id or len(run_id) > 64:
        abort(400, "before= is no place in the history.")
    return int(at), run_id


def _choice(name: str, allowed: Any, default: str) -> str:
    """Return what the request chooses, the default when it is none of what there is."""
    value = request.args.get(name, default)
    return value if value in allowed else default


class Dashboard:
    """The views of one app."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # -- pages ----------------------------------------------------------------------------------------

    def overview(self) -> Response:
        """Show hosts, owners, health, what runs and what went wrong."""
        return self._page("overview", lambda: pages.overview(self._engine))

    def timeline(self) -> Response:
        """Show the runs of a span of time as a picture."""
        span = _choice("span", SPANS, "1h")
        query = request.args.get("q", "")[:255]
        return self._page("timeline", lambda: pages.timeline(self._engine, span=span, query=query))

    def jobs(self) -> Response:
        """Show one page of the jobs."""
        query = request.args.get("q", "")[:255]
        state = _choice("state", pages.STATES, "all")
        sort = _choice("sort", pages.SORTS, "id")
        page = request.args.get("page", 1, type=int)
        return self._page(
            "jobs",
            lambda: pages.jobs_page(self._engine, query=query, state=state, sort=sort, page=page),
        )

    def job(self) -> Response:
        """Show one job."""
        job_id, before = self._id(), _before()
        return self._page("job", lambda: pages.job_page(self._engine, job_id, before=before))

    def runs(self) -> Response:
        """Show one page of the history."""
        job_id = request.args.get("job", "")[:255]
        status = _choice("status", {entry.value for entry in RunStatus}, "")
        before = _before()
        return self._page(
            "runs", lambda: pages.runs_page(self._engine, job_id=job_id, status=status, before=before)
        )

    def run(self) -> Response:
        """Show one run."""
        run_id = self._id()
        return self._page("run", lambda: pages.run_page(self._engine, run_id))

    def locks(self) -> Response:
        """Show what is held."""
        return self._page("locks", lambda: pages.locks_page(self._engine))

    def asset(self, filename: str) -> AnyResponse:
        """Give a stylesheet, script or icon."""
        response = send_from_directory(STATIC, filename, max_age=3600)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    # -- actions --------------------------------------------------------------------------------------

    def confirm(self) -> Response:
        """Ask before an action is done."""
        return self._ask(self._action(request.args), request.args)

    def act(self) -> AnyResponse:
        """Do an action that was confirmed."""
        action = self._action(request.form)
        target = request.form.get("id", "")
        require_safe(request)
        if read_only():
            audit(action.name, target, outcome="refused: read-only")
            abort(403, "You may look at the jobs and not change them.")
        if not csrf_valid(request):
            audit(action.name, target, outcome="refused: the form's token is missing, wrong or too old")
            return self._ask(
                action,
                request.form,
                status=400,
                problem="The form was too old, or your browser keeps no cookies of this site. Confirm once more.",
            )
        arguments = {name: request.form.get(name, "") for name in ("id", "kind", "holder")}
        try:
            ask_within(PAGE_SECONDS, lambda: perform(self._engine, action, **arguments))
        except StoreError as error:
            audit(action.name, target, outcome=f"not known: {error}")
            return self._away(error)
        except JobGone:
            audit(action.name, target, outcome="failed: no such job")
            return self._gone("There is no such job", target)
        except Refusal as error:
            trouble = store_trouble(self._engine) if isinstance(error.__cause__, ConfigError) else None
            if trouble is not None:
                audit(action.name, target, outcome=f"failed: {trouble}")
                return self._away(trouble)
            audit(action.name, target, outcome=f"failed: {error}")
            return self._ask(action, request.form, status=409, problem=str(error))
        audit(action.name, target or "all jobs")
        place = {"job": "job", "lock": "locks", "cluster": "overview"}[action.target]
        extra: dict[str, Any] = {"id": target} if place == "job" else {}
        response = redirect(url_for(f"{NAME}.{place}", done=action.name, **extra), 303)
        response.headers["Cache-Control"] = "no-store"
        return response

    @staticmethod
    def _action(values: Mapping[str, str]) -> Action:
        action = ACTIONS.get(values.get("action", ""))
        if action is None:
            abort(400, "There is no such action.")
        if action.target != "cluster" and not 0 < len(values.get("id", "")) <= 255:
            abort(400, "Which one is not said.")
        return action

    def _ask(
        self, action: Action, values: Mapping[str, str], *, status: int = 200, problem: str | None = None
    ) -> Response:
        back = {"job": "job", "lock": "locks", "cluster": "overview"}[action.target]
        id = values.get("id", "")
        extra: dict[str, Any] = {"id": id} if back == "job" else {}
        return self._render(
            "confirm",
            {
                "action": action,
                "id": id,
                "kind": values.get("kind", ""),
                "holder": values.get("holder", ""),
                "back": url_for(f"{NAME}.{back}", **extra),
                "problem": problem,
                "csrf_field": CSRF_FIELD,
                "csrf_token": csrf_token(),
                "app_token": self._token_of_app(),
            },
            status=status,
            active="",
            live=False,
        )

    def _token_of_app(self) -> str | None:
        """Return the token of Flask-WTF's protection, which asks for its own in every form of the app."""
        make = self._engine.app.jinja_env.globals.get("csrf_token")
        return str(make()) if callable(make) else None

    # -- answers --------------------------------------------------------------------------------------

    @staticmethod
    def _id() -> str:
        value = request.args.get("id", "")
        if not 0 < len(value) <= 255:
            abort(400, "id= is missing.")
        return value

    def _page(self, name: str, find: Callable[[], dict[str, Any]]) -> Response:
        try:
            found = ask_within(PAGE_SECONDS, find)
        except StoreError as error:
            return self._away(error)
        except JobGone as error:
            return self._gone("There is no such job", str(error))
        except RunGone as error:
            return self._gone(
                "There is no such run: it may be older than the history that is kept", str(error)
            )
        except HTTPException:
            raise
        except Exception:
            trouble = store_trouble(self._engine)
            if trouble is None:
                raise
            return self._away(trouble)
        return self._render(name, found, active=name)

    def _render(
        self,
        name: str,
        values: Mapping[str, Any],
        *,
        status: int = 200,
        active: str = "",
        live: bool = True,
    ) -> Response:
        done = ACTIONS.get(request.args.get("done", ""))
        text = (
            environment()
            .get_template(f"{name}.html")
            .render(
                {
                    "cluster": self._engine.settings.cluster,
                    "host": self._engine.settings.host_id,
                    "url": lambda endpoint, **values: url_for(f"{NAME}.{endpoint}", **values),
                    "active": {"job": "jobs", "run": "runs"}.get(active, active),
                    "live_seconds": LIVE_SECONDS if live else 0,
                    "may_change": not read_only(),
                    "done": done.done if done is not None else None,
                    "version": _version(),
                    **values,
                }
            )
        )
        response = Response(text, status=status, content_type="text/html; charset=utf-8", headers=HEADERS)
        return keep_csrf_cookie(response, path=url_for(f"{NAME}.overview"))

    def _away(self, error: SingleJobError) -> Response:
        """Tell what is known here while the store is away."""
        engine = self._engine
        logger.debug("the page finds the store away: %s", error)
        campaign = engine.campaign
        return self._render(
            "away",
            {
                "error": shown(error),
                "store": engine.describe_store(),
                "away_seconds": engine.outages.away_seconds,
                "is_owner": engine.is_owner,
                "pid": engine.pid,
                "state": "none" if campaign is None else campaign.state,
                "election": election_dict(engine),
                "jobs": sorted(engine.catalog.ids())[:100],
            },
            status=503,
            active="",
        )

    def _gone(self, what: str, id: str) -> Response:
        return self._render("gone", {"what": what, "id": id}, status=404, live=False)


def _version() -> str:
    from .. import __version__

    return __version__
