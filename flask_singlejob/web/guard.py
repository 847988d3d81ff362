"""Who may see and change jobs over HTTP: the guard of views, protection from other sites, audit lines.

Owns no view. Knows nothing of users: the application's own guard does, and what it left behind names the
one who acted.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flask import Request, Response, abort, current_app, g, has_request_context, request
from itsdangerous import BadSignature, URLSafeTimedSerializer

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config import Settings

__all__ = [
    "CSRF_COOKIE",
    "CSRF_FIELD",
    "acting_user",
    "apply_guard",
    "audit",
    "csrf_token",
    "csrf_valid",
    "keep_csrf_cookie",
    "read_only",
    "require_safe",
    "unsafe_reason",
]

#: One line for each change made by hand over HTTP goes to this logger.
audit_logger = logging.getLogger("flask_singlejob.audit")

View = Callable[..., Any]

CSRF_COOKIE = "singlejob_csrf"
CSRF_FIELD = "singlejob_token"
#: A form that was left open for longer, seconds, has to be loaded again.
CSRF_SECONDS = 12 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: What of a user object names it in the audit line, first found first taken.
USER_NAMES = ("username", "email", "login", "name", "id")


def apply_guard(view: View, settings: Settings) -> View:
    """Return a view behind the guard that the configuration names; ``"public"`` lets anybody in.

    :raises ConfigError: when there is no guard, or when it is no decorator.
    """
    guard = settings.guard
    if guard is None:
        # Configuration refuses this already; a view is never served unguarded by an oversight there.
        raise ConfigError(
            'SINGLEJOB_GUARD is not set: set it to a view decorator, to "module:name" of one, or to "public"'
        )
    if guard == "public":
        return view
    guarded = guard(view)
    if not callable(guarded):
        raise ConfigError(
            f"SINGLEJOB_GUARD is {guard!r}, which returned {guarded!r} for a view: it must be a view "
            "decorator, which takes a view and returns one"
        )
    found: View = guarded
    return found


def read_only() -> bool:
    """Tell whether the guard let this request look and not change (it set ``g.singlejob_read_only``)."""
    return bool(g.get("singlejob_read_only", False))


# -- requests of other sites ------------------------------------------------------------------------------


def unsafe_reason(request: Request) -> str | None:
    """Return why a request that changes something may be another site's doing, or None.

    Browsers send ``Sec-Fetch-Site`` or ``Origin`` with each of them and let no page forge either; programs
    that are no browser send neither, and carry no cookie that they did not mean to.
    """
    if request.method in SAFE_METHODS:
        return None
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        if site in ("same-origin", "none"):
            return None
        return f"the browser says it comes from another site (Sec-Fetch-Site: {site[:40]})"
    origin = request.headers.get("Origin") or request.headers.get("Referer")
    if origin is None:
        # An old browser would send a cookie along with a form; it could not send JSON to another site.
        if request.cookies and not request.is_json and "Authorization" not in request.headers:
            return "it carries a cookie and says neither Origin nor Referer: send JSON, or an Origin"
        return None
    host = urlsplit(origin).netloc.rpartition("@")[2].lower()
    # No page can set these two in a request to another site. The scheme is left out: a proxy may end TLS.
    own = {request.host.lower()}
    forwarded = request.headers.get("X-Forwarded-Host", "").split(",")[0].strip().lower()
    if forwarded:
        own.add(forwarded)
    if host and host in own:
        return None
    return f"it comes from {origin[:100]!r}, and this site is {request.host!r}"


def require_safe(request: Request) -> None:
    """Answer 403 to a request that changes something and may be another site's doing."""
    reason = unsafe_reason(request)
    if reason is not None:
        audit("refused", request.path, outcome=reason)
        abort(403, f"This request was refused: {reason}.")


def _signer() -> URLSafeTimedSerializer | None:
    key = current_app.secret_key
    return None if not key else URLSafeTimedSerializer(key, salt="flask-singlejob-csrf")


def csrf_token() -> str:
    """Return the token for a form of this response, bound to a cookie that :func:`keep_csrf_cookie` sets."""
    secret: str | None = g.get("singlejob_csrf")
    if secret is None:
        secret = request.cookies.get(CSRF_COOKIE, "")
        if not 40 <= len(secret) <= 80 or not secret.isascii():
            secret = secrets.token_urlsafe(32)
        g.singlejob_csrf = secret
    signer = _signer()
    return secret if signer is None else str(signer.dumps(secret))


def keep_csrf_cookie(response: Response, *, path: str) -> Response:
    """Set the cookie that this response's tokens are bound to, when there are any.

    :param path: where the pages are, with what the application is mounted under.
    """
    secret: str | None = g.get("singlejob_csrf")
    if secret is not None and request.cookies.get(CSRF_COOKIE) != secret:
        response.set_cookie(
            CSRF_COOKIE,
            secret,
            path=path,
            secure=request.is_secure,
            httponly=True,
            samesite="Strict",
        )
    return response


def csrf_valid(request: Request) -> bool:
    """Tell whether a form carries the token that its cookie asks for."""
    cookie = request.cookies.get(CSRF_COOKIE, "")
    given = request.form.get(CSRF_FIELD, "")
    if len(cookie) < 40 or not given:
        return False
    signer = _signer()
    if signer is not None:
        try:
            given = str(signer.loads(given, max_age=CSRF_SECONDS))
        except BadSignature:
            return False
    return hmac.compare_digest(given.encode(), cookie.encode())


# -- who did it -------------------------------------------------------------------------------------------


def _name_of(user: Any) -> str | None:
    if user is None or getattr(user, "is_anonymous", False) is True:
        return None
    if isinstance(user, (str, int)):
        return str(user) or None
    if isinstance(user, dict):
        found = next((user[name] for name in USER_NAMES if user.get(name)), None)
    else:
        found = next((value for name in USER_NAMES if (value := getattr(user, name, None))), None)
        if found is None and callable(getattr(user, "get_id", None)):
            found = user.get_id()
    return None if found is None else str(found)


def acting_user() -> str | None:
    """Return the name of the one whose request this is, as far as the guard or the server tells."""
    if not has_request_context():
        return None
    candidates: list[Callable[[], Any]] = [
        lambda: g.get("singlejob_user"),
        lambda: g.get("user"),
        lambda: g.get("current_user"),
    ]
    login = sys.modules.get("flask_login")
    if login is not None and hasattr(current_app, "login_manager"):
        candidates.append(lambda: login.current_user._get_current_object())
    candidates.append(lambda: request.environ.get("REMOTE_USER"))
    candidates.append(lambda: request.authorization.username if request.authorization else None)
    for candidate in candidates:
        # A user object of the application may do anything when it is read; an audit line must not fail.
        try:
            name = _name_of(candidate())
        except Exception:
            name = None
        if name:
            return name
    return None


def audit(action: str, what: str, *, outcome: str = "done") -> None:
    """Log who did what to the jobs over HTTP, from which address, on one line.

    :param action: ``run``, ``pause`` and the like.
    :param what: the job or lock.
    """
    user = acting_user()
    address = request.remote_addr if has_request_context() else None
    # repr() keeps a hostile name on its one line.
    audit_logger.warning(
        "audit: user %s from %s: %s %s: %s",
        "unknown" if user is None else repr(user[:200]),
        address or "unknown",
        action,
        repr(what[:300]),
        outcome,
        extra={
            "singlejob_action": action,
            "singlejob_target": what,
            "singlejob_user": user,
            "singlejob_address": address,
            "singlejob_outcome": outcome,
        },
    )
