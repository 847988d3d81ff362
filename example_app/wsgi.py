"""The shop for servers that want a name and no factory: ``gunicorn example_app.wsgi:app``."""

from __future__ import annotations

from . import create_app

app = create_app()
