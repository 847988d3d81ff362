"""What this process tells others of its server: by what it is loaded and patched, and by which driver.

Looks at what is loaded only; imports nothing and asks nobody.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import process
from .green import green_kind

if TYPE_CHECKING:
    from .stores.base import Store

__all__ = ["container_platform", "describe_server", "memory_trouble"]

#: What a process is whose server forks several like it.
_FORKING = ("a worker of gunicorn", "a worker of uWSGI")


def describe_server(store: Store) -> dict[str, Any]:
    """Return role, preloading, patching and the store's driver of this process, JSON-ready."""
    target = getattr(store, "_target", None)
    return {
        "role": process.current_role().reason,
        "preload": process.this.preloaded,
        "patched": green_kind("sockets"),
        "driver": getattr(target, "driver", None),
    }


def container_platform() -> str | None:
    """Return the name of the container platform that this process runs on, if its environment tells."""
    for variable, name in (
        ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
        ("DYNO", "Heroku"),
        ("ECS_CONTAINER_METADATA_URI_V4", "ECS"),
        ("K_SERVICE", "Cloud Run"),
        ("FLY_APP_NAME", "Fly.io"),
        ("WEBSITE_INSTANCE_ID", "Azure App Service"),
        ("RENDER", "Render"),
    ):
        if os.environ.get(variable):
            return name
    return None


def memory_trouble(store: Store) -> str | None:
    """Return what is wrong with a store in memory in one of several processes of a server, or None."""
    standing = process.current_role()
    forked = standing.role is process.Role.SERVING and standing.reason in _FORKING
    if not forked or not store.identity.startswith("memory://"):
        return None
    return (
        f"this process is {standing.reason} and SINGLEJOB_STORE is memory://, which each worker has for itself: every "
        "job runs once per worker; set SINGLEJOB_STORE to a database, or leave it out for an SQLite file"
    )
