"""The shop's page: orders, reports, and what the schedule looks like from the worker that answers."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from flask import Blueprint, abort, current_app, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from . import shop
from .jobs import cached_prices, jobs

__all__ = ["blueprint"]

blueprint = Blueprint("shop", __name__)


@blueprint.app_template_filter("clock")
def clock(moment: datetime | str | None) -> str:
    """Return the time of day, in UTC, of a datetime or of its ISO 8601 text."""
    if not moment:
        return ""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return f"{moment:%H:%M:%S} UTC"


@blueprint.get("/")
def index() -> str:
    """Show everything on one page."""
    return render_template(
        "index.html",
        pid=os.getpid(),
        is_owner=jobs.is_owner,
        status=jobs.status(),
        runs=jobs.runs(limit=12),
        prices=cached_prices(),
        orders=shop.orders(),
        reports=shop.reports(),
    )


@blueprint.post("/orders")
def order() -> Response | tuple[dict[str, Any], int]:
    """Take an order from the form, or as JSON: ``{"product": "Cup", "pieces": 2}``."""
    wanted = request.get_json() if request.is_json else request.form
    try:
        pieces = int(wanted.get("pieces", 1))
        if not 1 <= pieces <= 100:
            raise ValueError
        number = shop.add_order(str(wanted.get("product")), pieces)
    except (KeyError, ValueError):
        abort(400, "Say which product, and how many pieces: 1 to 100.")
    shop.write_receipt(number)
    current_app.logger.info("order %s: %s x %s", number, pieces, wanted.get("product"))
    if request.is_json:
        return {"order": number}, 201
    return redirect(url_for(".index"))
