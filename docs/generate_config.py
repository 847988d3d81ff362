"""Writes docs/config.md from flask_singlejob/keys.py: ``python docs/generate_config.py``."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).with_name("config.md")
sys.path.insert(0, str(PAGE.parent.parent))

from flask_singlejob.keys import KEYS, Key  # noqa: E402
from flask_singlejob.scheduler_checks import JOB_OPTIONS  # noqa: E402

HEAD = """\
# Configuration

<!-- Written by docs/generate_config.py from flask_singlejob/keys.py: change it there. -->

Every key is read once, at `init_app`, from `app.config`. A wrong value is a `ConfigError` that names the key,
the value and what is allowed. An unknown `SINGLEJOB_` key that resembles a known one is a `ConfigError`
with the guess; any other is a warning in the log.

From the environment: `app.config.from_prefixed_env()` reads `FLASK_SINGLEJOB_LEASE=20` and the like, before
`init_app`. It reads JSON, so a switch is `true` or `false` (`False` stays a text and is refused), a list is
`["web", "mail"]`, and a name that looks like a number with a point or an `e` needs quotes of its own:
`FLASK_SINGLEJOB_HOST_ID='"12e4"'`. Entries of a dict come one by one, after two underscores:
`FLASK_SINGLEJOB_STORE_OPTIONS__pool_recycle=300`.

Durations are seconds (a number, not a text) or a `timedelta`.
"""

OWN = """\
## Flask-SingleJob's keys

"""

SCHEDULER = """\
## Flask-APScheduler's keys

They work as in Flask-APScheduler, but for what is said here. In place of `SCHEDULER_AUTH`,
`SCHEDULER_API_ENABLED`, `SCHEDULER_API_PREFIX`, `SCHEDULER_ENDPOINT_PREFIX` and `SCHEDULER_ALLOWED_HOSTS`
the attributes of the extension (`auth`, `api_enabled` and so on) may be set before `init_app`; the keys beat
them.

"""

DEFAULTS = """\
### What `SCHEDULER_JOB_DEFAULTS` may hold

| name | allowed |
|---|---|
"""

RULES = """\
## Rules that concern more than one key

- `SINGLEJOB_DASHBOARD` needs `SINGLEJOB_GUARD`; `SCHEDULER_API_ENABLED` needs `SINGLEJOB_GUARD` or
  `SCHEDULER_AUTH`. Health checks and metrics need no guard.
- `SINGLEJOB_POLL_INTERVAL` is at most `SINGLEJOB_LEASE`.
- No two pages may have one path: a health prefix equal to the dashboard's prefix is refused.
- The configuration beats the constructor: `SINGLEJOB_STORE`, if set, is used in place of
  `SingleJob(store=...)`.
- All processes of a cluster should have the same `SINGLEJOB_STORE`, `SINGLEJOB_CLUSTER`,
  `SINGLEJOB_TABLE_PREFIX` and `SINGLEJOB_SCHEMA`; each host has a `SINGLEJOB_HOST_ID` of its own.
"""


def line(key: Key) -> str:
    """Return the table line of one key."""
    default = key.shown
    if default is None:
        value = int(key.default) if isinstance(key.default, float) and key.default != 1.0 else key.default
        default = f"`{value!r}`".replace("'", '"')
    cells = (f"`{key.name}`", default, key.allowed, key.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(prefix: str) -> str:
    """Return the table of all keys that begin with a prefix."""
    lines = "".join(line(key) for key in KEYS if key.name.startswith(prefix))
    return "| key | default | allowed | meaning |\n|---|---|---|---|\n" + lines


def page() -> str:
    """Return the whole page."""
    options = "".join(f"| `{name}` | {allowed} |\n" for name, (_, allowed) in JOB_OPTIONS.items())
    parts = (
        HEAD,
        OWN + table("SINGLEJOB_"),
        SCHEDULER + table("SCHEDULER_"),
        DEFAULTS + options,
        RULES,
    )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
