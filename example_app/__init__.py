"""A small shop whose scheduled work is done once, however many gunicorn workers serve it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flask import Flask

from . import pages, shop
from .jobs import jobs

__all__ = ["create_app"]


def create_app() -> Flask:
    """Return the shop. Settings come from the environment: ``FLASK_SINGLEJOB_STORE`` and the like."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(process)d] %(message)s", datefmt="%X")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)  # two lines per worker-scope run
    app = Flask(__name__, instance_path=os.environ.get("SHOP_INSTANCE"))
    app.config.from_prefixed_env()
    app.config.setdefault("SHOP_DATABASE", str(Path(app.instance_path) / "shop.sqlite3"))
    app.config.setdefault("SHOP_TEMP", str(Path(app.instance_path) / "tmp"))
    shop.init_app(app)
    app.register_blueprint(pages.blueprint)
    jobs.init_app(app)
    return app
