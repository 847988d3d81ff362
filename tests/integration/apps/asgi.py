"""The basic app for servers that speak ASGI only: Flask behind an adapter, which answers in threads."""

from __future__ import annotations

from a2wsgi import WSGIMiddleware

from . import basic

app = WSGIMiddleware(basic.create_app())
