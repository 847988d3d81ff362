"""The REST API: Flask-APScheduler's routes, endpoints and JSON, true for the whole cluster.

Each view lies behind the app's guard and, where ``SCHEDULER_AUTH`` is set, behind that app's own
credentials; what changes something is refused when another site may have sent it. Only registered
functions can be scheduled. Keeps no state: an app's guard is its own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import PathConverter

from ..errors import ConfigError, JobDefinitionError, LockHeldError, SingleJobError, StoreError
from ..hosts import living_hosts
from ..records import RunStatus
from ..status import store_trouble
from . import guard
from .rest_json import (
    ADD_FIELDS,
    CHANGE_FIELDS,
    BadRequestBody,
    description,
    function_named,
    in_given_offset,
    job_json,
    json_text,
    moment_of,
    read_object,
)

if TYPE_CHECKING:
    from ..engine import Engine
    from ..extension import SingleJob

__all__ = ["TOKEN_HEADERS", "register_rest"]

logger = logging.getLogger(__name__)

#: With one of these headers, whatever its value, a change needs no JSON content type: no page can add a
#: header of its own to a request to another site.
TOKEN_HEADERS = ("X-Requested-With", "X-CSRF-Token")
RETRY_AFTER_SECONDS = 2
DENIED = "Access Denied"


class JobIdConverter(PathConverter):
    """Any text in an address: a job's id may hold slashes, also as its first letter."""

    regex = "(?s:.+?)"
    part_isolating = False


def register_rest(app: Flask, engine: Engine, extension: SingleJob) -> None:
    """Add the REST API's routes to an app.

    :raises ConfigError: when the app has neither a guard nor ``SCHEDULER_AUTH``.
    """
    settings = engine.settings
    if settings.guard is None and settings.auth is None:
        raise ConfigError(
            "the REST API has neither SINGLEJOB_GUARD nor SCHEDULER_AUTH: anybody could manage the jobs. "
            'Cure: set SINGLEJOB_GUARD to a view decorator, to "module:name" of one, or to "public".'
        )
    views = RestViews(engine, extension)
    app.url_map.converters["job_id"] = JobIdConverter
    for name, rule, method, view in (
        ("get_scheduler_info", "", "GET", views.info),
        ("pause_scheduler", "/pause", "POST", views.pause),
        ("resume_scheduler", "/resume", "POST", views.resume),
        ("start_scheduler", "/start", "POST", views.start),
        ("shutdown_scheduler", "/shutdown", "POST", views.shutdown),
        ("get_openapi", "/openapi.json", "GET", views.openapi),
        ("get_jobs", "/jobs", "GET", views.get_jobs),
        ("add_job", "/jobs", "POST", views.add_job),
        ("get_job", "/jobs/<job_id:job_id>", "GET", views.get_job),
        ("delete_job", "/jobs/<job_id:job_id>", "DELETE", views.delete_job),
        ("update_job", "/jobs/<job_id:job_id>", "PATCH", views.update_job),
        ("pause_job", "/jobs/<job_id:job_id>/pause", "POST", views.pause_job),
        ("resume_job", "/jobs/<job_id:job_id>/resume", "POST", views.resume_job),
        ("run_job", "/jobs/<job_id:job_id>/run", "POST", views.run_job),
    ):
        app.add_url_rule(
            settings.api_prefix + rule,
            settings.endpoint_prefix + name,
            _behind_guard(_behind_auth(_safely(view, name, engine, extension), app, extension), engine, name),
            methods=[method],
            merge_slashes=False,
        )


# -- who may ----------------------------------------------------------------------------------------------


def _behind_guard(view: Callable[..., Any], engine: Engine, name: str) -> Callable[..., Any]:
    settings = engine.settings
    # The name that a decorator sees is the endpoint's own, not that of a closure.
    view.__name__ = view.__qualname__ = name
    return view if settings.guard is None else guard.apply_guard(view, settings)


def _behind_auth(view: Callable[..., Any], app: Flask, extension: SingleJob) -> Callable[..., Any]:
    """Ask for the credentials of ``SCHEDULER_AUTH``: those of this view's app, whatever others have."""

    @functools.wraps(view)
    def authenticated(*arguments: Any, **keywords: Any) -> Any:
        auth = extension.auth_of(app)
        if auth is None:
            return view(*arguments, **keywords) if _guarded(extension, app) else _error(403, DENIED)
        given = auth.get_authorization()
        check = extension.authenticator(app)
        if given is None or check is None or not check(given):
            response = Response(DENIED, status=401)
            challenge = auth.get_authenticate_header()
            if challenge:
                response.headers["WWW-Authenticate"] = challenge
            return response
        return view(*arguments, **keywords)

    return authenticated


def _guarded(extension: SingleJob, app: Flask) -> bool:
    from ..engine_access import engine_of

    engine = engine_of(app)
    return engine is not None and engine.settings.guard is not None


def _public(engine: Engine, extension: SingleJob) -> bool:
    return engine.settings.guard == "public" and extension.auth_of(engine.app) is None


def _refusal(engine: Engine, extension: SingleJob) -> Response | None:
    """Return why a change must not be made, or None: it may be the doing of another site's page."""
    if request.method in guard.SAFE_METHODS:
        return None
    reason = guard.unsafe_reason(request)
    if reason is not None:
        guard.audit("refused", request.path, outcome=reason)
        return _error(403, f"This request was refused: {reason}.")
    if guard.read_only():
        return _error(403, "You may look at the jobs here, not change them.")
    if (
        _public(engine, extension)
        or request.is_json
        or any(name in request.headers for name in TOKEN_HEADERS)
    ):
        return None
    return _error(
        415,
        "A change needs the content type application/json, with a body or without, or a header "
        f"{TOKEN_HEADERS[0]}: neither can come from another site's form.",
    )


# -- answers ----------------------------------------------------------------------------------------------


def _answer(value: Any, status: int = 200) -> Response:
    return Response(json_text(value), status=status, mimetype="application/json")


def _error(status: int, message: str, **more: Any) -> Response:
    return _answer({"error_message": message, **more}, status)


def _safely(
    view: Callable[..., Response], name: str, engine: Engine, extension: SingleJob
) -> Callable[..., Any]:
    """Turn what a view raises into an answer that tells nothing of the inside."""

    def safely(*arguments: Any, **keywords: Any) -> Response:
        refused = _refusal(engine, extension)
        if refused is not None:
            return refused
        target = str(keywords.get("job_id", ""))
        try:
            response = view(*arguments, **keywords)
        except HTTPException as error:
            return _error(error.code or 400, error.description or error.name)
        except Exception as error:
            response = _failure(error, target, engine)
        if request.method not in guard.SAFE_METHODS and name != "add_job":
            guard.audit(
                name, target, outcome="done" if response.status_code < 400 else f"{response.status_code}"
            )
        return response

    return safely


def _failure(error: Exception, job_id: str, engine: Engine) -> Response:
    if isinstance(error, BadRequestBody):
        return _error(400, str(error))
    if isinstance(error, JobLookupError):
        return _error(404, f"Job {job_id} not found")
    if isinstance(error, ConflictingIdError):
        return _error(409, f"Job {job_id} already exists.")
    if isinstance(error, LockHeldError):
        since = error.since
        return _error(409, str(error), running_since=None if since is None else since.isoformat())
    if isinstance(error, ConfigError) or not isinstance(error, SingleJobError):
        trouble = store_trouble(engine)
        if trouble is not None:
            logger.error("a request to the REST API failed: %s", trouble)
            return _error(503, "The store of the jobs cannot be used. The application's log says why.")
    if isinstance(error, (JobDefinitionError, ConfigError)):
        return _error(400, str(error))
    if isinstance(error, StoreError):
        logger.warning("a request to the REST API failed, the store is away: %s", error)
        response = _error(503, "The store of the jobs does not answer. Try again.")
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return response
    if isinstance(error, SingleJobError):
        return _error(409, str(error))
    logger.error("a request to the REST API failed", exc_info=error)
    return _error(500, "Something failed inside. The application's log says what.")


def _is_switch_on(name: str, default: bool) -> bool:
    value = request.args.get(name)
    if value is None:
        return default
    if value.lower() in ("true", "1", "yes"):
        return True
    if value.lower() in ("false", "0", "no"):
        return False
    raise BadRequestBody(f"{name} in the query has to be true or false")


class RestViews:
    """The views of one app."""

    def __init__(self, engine: Engine, extension: SingleJob) -> None:
        self._engine = engine
        self._extension = extension

    # -- the whole --------------------------------------------------------------------------------

    def info(self) -> Response:
        """Tell of the cluster: whether any host's owner runs it, whether it is paused, and who lives."""
        engine = self._engine
        now = engine.ready_store().poll().now
        hosts = sorted({str(doc.body.get("host")) for doc in living_hosts(engine.store.docs("host"), now)})
        return _answer(
            {
                "current_host": self._extension.host_name,
                "allowed_hosts": self._extension.allowed_hosts,
                "running": engine.running or bool(hosts),
                "paused": engine.manager.paused_all(),
                "cluster": engine.settings.cluster,
                "hosts": hosts,
            }
        )

    def openapi(self) -> Response:
        """Give the OpenAPI description of these routes, at the address where they are."""
        engine = self._engine
        names = list(engine.catalog.registry)
        return _answer(description(engine.settings.api_prefix, request.script_root, names))

    def pause(self) -> Response:
        """Pause the whole cluster."""
        self._engine.api.pause()
        return Response(status=204)

    def resume(self) -> Response:
        """Resume the whole cluster."""
        self._engine.api.resume()
        return Response(status=204)

    def start(self) -> Response:
        """Have the worker that answers campaign."""
        if self._engine.running:
            return self._this_worker("runs already")
        self._engine.api.start()
        if not self._engine.running:
            return _error(
                409,
                "The worker that answered does not campaign: SINGLEJOB_ENABLED, SCHEDULER_ALLOWED_HOSTS or what this "
                "process is (a test, a command) keeps it from it.",
            )
        return Response(status=204)

    def shutdown(self) -> Response:
        """Have the worker that answers leave."""
        wait = read_object(request, ("wait",), may_be_empty=True).get("wait", True)
        if not isinstance(wait, bool):
            raise BadRequestBody("wait has to be true or false")
        if not self._engine.running:
            return self._this_worker("is not running")
        self._engine.api.shutdown(wait=wait)
        return Response(status=204)

    @staticmethod
    def _this_worker(what: str) -> Response:
        return _error(
            400,
            f"The scheduler of the worker that answered {what}. Start and shutdown are for that one worker: to hold "
            "the cluster's jobs, use pause and resume.",
        )

    # -- jobs -------------------------------------------------------------------------------------

    def get_jobs(self) -> Response:
        """List the cluster's jobs."""
        return _answer([job_json(job) for job in self._engine.api.get_jobs()])

    def get_job(self, job_id: str) -> Response:
        """Show a job."""
        return _answer(self._job(job_id))

    def _job(self, job_id: str) -> dict[str, Any]:
        found = self._engine.api.get_job(job_id)
        if found is None:
            raise JobLookupError(job_id)
        return job_json(found)

    def _fields(self, allowed: frozenset[str]) -> dict[str, Any]:
        fields = read_object(request, allowed)
        fields.pop("jobstore", None)
        if "func" in fields:
            fields["func"] = function_named(fields["func"], self._engine.catalog)
        if "next_run_time" in fields:
            fields["next_run_time"] = moment_of("next_run_time", fields["next_run_time"])
        return fields

    def add_job(self) -> Response:
        """Store a job."""
        job_id = ""
        try:
            fields = self._fields(ADD_FIELDS)
            job_id = fields.pop("id", None)
            if not isinstance(job_id, str) or "func" not in fields:
                raise BadRequestBody("a job needs an id and a func, both texts")
            if not isinstance(fields.get("replace_existing", False), bool):
                raise BadRequestBody("replace_existing has to be true or false")
            job = self._engine.api.add_job(job_id, fields.pop("func"), persist=True, **fields)
        except Exception as error:
            response = _failure(error, job_id if isinstance(job_id, str) else "", self._engine)
        else:
            response = _answer(in_given_offset(job_json(job), fields))
        outcome = "done" if response.status_code < 400 else str(response.status_code)
        guard.audit("add_job", str(job_id), outcome=outcome)
        return response

    def update_job(self, job_id: str) -> Response:
        """Change a job."""
        self._job(job_id)
        fields = self._fields(CHANGE_FIELDS)
        if "id" in fields and fields.pop("id") != job_id:
            raise BadRequestBody("the id of a job cannot be changed: remove it and add another")
        return _answer(in_given_offset(job_json(self._engine.api.modify_job(job_id, **fields)), fields))

    def delete_job(self, job_id: str) -> Response:
        """Remove a job from the whole cluster."""
        self._engine.api.remove_job(job_id)
        return Response(status=204)

    def pause_job(self, job_id: str) -> Response:
        """Pause a job in the whole cluster."""
        self._engine.api.pause_job(job_id)
        return _answer(self._job(job_id))

    def resume_job(self, job_id: str) -> Response:
        """Resume a job in the whole cluster."""
        self._engine.api.resume_job(job_id)
        return _answer(self._job(job_id))

    def run_job(self, job_id: str) -> Response:
        """Run a job here and now and show it afterwards, or (``?wait=false``) hand it to an owner."""
        wait = _is_switch_on("wait", True)
        before = self._job(job_id)
        run = self._engine.api.run_job(job_id, wait=wait)
        if run is None:
            return _answer(before, 202)
        shown = {"id": run.id, "status": str(run.status), "duration": run.duration}
        if run.status is RunStatus.FAILED:
            message = (
                f"Job {job_id} failed in run {run.id}: the job's history and the application's log say why."
            )
            return _error(500, message, run=shown)
        found = self._engine.api.get_job(job_id)
        return _answer({**(before if found is None else job_json(found)), "run": shown})
