"""``flask singlejob …``: the group of commands, and nothing of what they do.

Every worker of a web app imports this module, so a command's own module is imported when it is called.
"""

from __future__ import annotations

import importlib

import click
from flask import Flask
from flask.cli import AppGroup

__all__ = ["COMMANDS", "register_commands"]

#: Each command and where it lives, in the order that help shows them.
COMMANDS: dict[str, str] = {
    "status": "look:status",
    "health": "look:health",
    "jobs": "look:jobs",
    "history": "history:history",
    "run": "steer:run",
    "pause": "steer:pause",
    "resume": "steer:resume",
    "remove": "steer:remove",
    "reset": "steer:reset",
    "locks": "look:locks",
    "unlock": "steer:unlock",
    "once": "steer:once",
    "init-db": "setup:init_db",
    "import-jobs": "setup:import_jobs",
    "doctor": "setup:doctor",
    "scheduler": "owner:scheduler",
}


class SingleJobGroup(AppGroup):
    """A group whose commands are imported one by one, when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order that help shows them."""
        return [*COMMANDS, *(name for name in self.commands if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(f".{module}", __name__), name)
        assert isinstance(command, click.Command)
        return command


def register_commands(app: Flask) -> None:
    """Add the group ``singlejob`` to the app's commands."""
    app.cli.add_command(
        SingleJobGroup(
            "singlejob",
            short_help="See and steer the scheduled jobs of the cluster.",
            help="See and steer the scheduled jobs of the cluster.\n\n"
            "Works from any machine that reaches the store, also while the web app is down, and starts no "
            "scheduler ('scheduler' apart).\n\n"
            "Exit codes: 0 all is well, 1 it is not (unhealthy, failed, held, not found, store away), "
            "2 wrong use.",
        )
    )
