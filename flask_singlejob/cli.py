"""flask singlejob …"""

from __future__ import annotations

from flask import Flask

__all__ = ["register_commands"]


def register_commands(app: Flask) -> None:
    """Add the commands to the app."""
