"""Writes the reference in docs/cli.md from the commands' own help: ``python docs/generate_cli.py``.

What stands above the mark in the page is written by hand and kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
sys.path.insert(0, str(PAGE.parent.parent))

import click  # noqa: E402
from flask import Flask  # noqa: E402

from flask_singlejob.cli import COMMANDS, register_commands  # noqa: E402

MARK = "<!-- Written by docs/generate_cli.py from the commands' help: change it there. -->"


def reference() -> str:
    """Return the reference of every command, in the order of ``flask singlejob --help``."""
    app = Flask("app")
    register_commands(app)
    group = app.cli.commands["singlejob"]
    assert isinstance(group, click.Group)
    parts = [MARK]
    with click.Context(group, info_name="flask singlejob") as context:
        for name in COMMANDS:
            command = group.get_command(context, name)
            assert command is not None
            with click.Context(
                command, info_name=name, parent=context, max_content_width=100, terminal_width=100
            ) as own:
                parts.append(f"### {name}\n\n```text\n{command.get_help(own)}\n```")
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """Return the whole page as it should be."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return head + reference()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
