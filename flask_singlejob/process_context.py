"""Where the calling code stands in this process: in the body of a command, or before it."""

from __future__ import annotations

import sys

__all__ = ["in_command_body"]


def in_command_body() -> bool:
    """Tell whether a command of Flask's CLI has its app and is running its own code now.

    While the command only loads the app, the factory defines jobs as it does under a server; ``flask run``
    is a server.
    """
    # Without click imported there is no command.
    if "click" not in sys.modules or "flask.cli" not in sys.modules:
        return False
    import click
    from flask.cli import ScriptInfo

    context = click.get_current_context(silent=True)
    if context is None or context.info_name == "run":
        return False
    info = context.find_object(ScriptInfo)
    return info is not None and info._loaded_app is not None
