"""Which drivers of SQL databases are served, and which of them is installed.

Imports neither SQLAlchemy nor a driver: a URL can be refused at start, before anything is connected.
"""

from __future__ import annotations

import importlib.util

from ..errors import ConfigError

__all__ = ["choose_driver"]

#: Per database the drivers that are served, the preferred first, with the module that each needs.
_DRIVERS = {
    "sqlite": {"pysqlite": "sqlite3"},
    "postgresql": {"psycopg": "psycopg", "psycopg2": "psycopg2"},
    "mysql": {"mysqldb": "MySQLdb", "pymysql": "pymysql"},
}
_ASYNC = {
    "asyncpg": "postgresql+psycopg",
    "psycopg_async": "postgresql+psycopg",
    "aiosqlite": "sqlite",
    "aiomysql": "mysql+pymysql",
    "asyncmy": "mysql+pymysql",
}


def choose_driver(drivername: str, shown: str) -> tuple[str, str]:
    """Return the database and the driver, chosen by what is installed when the name leaves it open.

    :param drivername: what stands before ``://``.
    :param shown: the URL for messages, without its password.
    :raises ConfigError: if the driver is not served or not installed.
    """
    kind, _, driver = drivername.partition("+")
    kind = "mysql" if kind == "mariadb" else kind
    if driver in _ASYNC:
        raise ConfigError(
            f"The store's driver {driver} is asynchronous, which a scheduler's threads cannot use: "
            f"write {_ASYNC[driver]}:// for the store; the application may keep its own."
        )
    drivers = _DRIVERS[kind]
    if driver and driver not in drivers:
        served = " or ".join(f"{kind}+{one}://" for one in drivers)
        raise ConfigError(f"The store's driver {driver} is not served: write {served}.")
    for name in [driver] if driver else drivers:
        if importlib.util.find_spec(drivers[name]) is not None:
            return kind, name
    module = drivers[driver] if driver else " nor ".join(drivers.values())
    raise ConfigError(
        f"The store {shown} needs a driver that is not installed ({module}): "
        f'pip install "flask-singlejob[{kind}]"'
    )
