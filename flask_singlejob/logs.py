"""The package's log lines in an app that never configured logging.

As Flask does for ``app.logger``: without any handler, lines at INFO would be dropped and an owner could not
say who it is. Once the app configures logging, the handler made here keeps silent.
"""

from __future__ import annotations

import logging

from flask.logging import default_handler

__all__ = ["be_heard"]

_package = logging.getLogger(__package__)


class _UntilConfigured(logging.Filter):
    """Lets lines through only while nobody configured logging."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.getLogger().handlers and not _others()


def _others() -> list[logging.Handler]:
    return [handler for handler in _package.handlers if handler is not _handler]


_handler = logging.StreamHandler()
_handler.setFormatter(default_handler.formatter)
_handler.addFilter(_UntilConfigured())


def be_heard() -> None:
    """Write INFO lines to stderr unless logging is configured.

    ``logging.config.dictConfig`` disables every logger that is there already and not named in it, unless told
    otherwise: the package's are enabled again, so that trouble is never passed over in silence. Levels are left alone.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name == __package__ or name.startswith(f"{__package__}.")):
            logger.disabled = False
    if _handler in _package.handlers or logging.getLogger().handlers or _package.handlers:
        return
    if _package.level == logging.NOTSET and not _package.isEnabledFor(logging.INFO):
        _package.setLevel(logging.INFO)
        _package.addHandler(_handler)
