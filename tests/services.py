"""Database servers for tests: the ones that run already, or private ones that a test may stop and kill.

A server that cannot be had skips the test with the reason; with ``CI=true`` it fails it.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.integration.waiting import wait_until
from tests.redis_server import RedisServer, free_port

__all__ = [
    "MariaDBServer",
    "PostgreSQLServer",
    "RedisServer",
    "SilentServer",
    "free_port",
    "missing",
    "shared_mariadb",
    "shared_postgresql",
    "shared_redis",
]


def missing(what: str) -> NoReturn:
    """Skip the test because of what is not there; in CI, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and CI has to have it")
    pytest.skip(what)


def _find(*names: str, places: Sequence[str] = ()) -> str:
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")
        for place in places:
            found = found or next(iter(sorted(glob.glob(f"{place}/{name}"), reverse=True)), None)
        if found:
            return found
    missing(f"{names[0]} is not installed")


class _Server:
    """A server in a directory of its own, on a free port of 127.0.0.1, that a test may treat badly."""

    name = ""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"sj-{self.name}-"))
        self.log = self.directory / "log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._user: str | None = None
        if os.geteuid() == 0:
            # Neither of them runs as root.
            self._user = next(
                (one for one in (self.name, "postgres", "mysql", "nobody") if _is_user(one)), None
            )
            assert self._user is not None, "no user to run a server as"
            os.chown(self.directory, pwd.getpwnam(self._user).pw_uid, pwd.getpwnam(self._user).pw_gid)

    def _as_user(self, command: Sequence[str]) -> list[str]:
        if self._user is None:
            return list(command)
        return [
            _find("setpriv"),
            f"--reuid={self._user}",
            f"--regid={_group(self._user)}",
            "--clear-groups",
            *command,
        ]

    def _run(self, command: Sequence[str]) -> None:
        with self.log.open("ab") as log:
            done = subprocess.run(
                self._as_user(command), stdout=log, stderr=log, cwd=self.directory, check=False
            )
        assert done.returncode == 0, self.log.read_text(errors="replace")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    def command(self) -> list[str]:
        """Return the server's command line."""
        raise NotImplementedError

    def connect(self) -> Any:
        """Return a connection of the test's own, in autocommit, as an administrator."""
        raise NotImplementedError

    def start(self) -> Any:
        """Start it on its port, with what its directory holds, and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user(self.command()),
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        try:
            wait_until(self._answers, deadline=60, what=f"{self.name} on port {self.port}")
        except BaseException:
            self.kill()
            raise
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        try:
            self.connect().close()
        except Exception:
            return False
        return True

    def freeze(self) -> None:
        """Stop all its processes where they stand: it accepts connections and never answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # Each of PostgreSQL's processes is the leader of a group of its own.
        for pid in _descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill it without any goodbye; its directory stays for another start."""
        if self._process is not None:
            pids = _descendants(self._process.pid)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None
            wait_until(lambda: not any(_lives(pid) for pid in pids), what="the end of all its processes")

    def restart(self) -> None:
        """Kill it and start it again on the same port."""
        self.kill()
        self.start()

    def remove(self) -> None:
        """Kill it and delete all it kept."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class PostgreSQLServer(_Server):
    """A private PostgreSQL; user ``postgres``, database ``test``, no password.

    :param options: settings, as ``name=value``.
    :param tls: make a certificate and serve TLS beside plain connections.
    """

    name = "postgres"

    def __init__(self, options: Sequence[str] = (), *, tls: bool = False) -> None:
        super().__init__()
        self._options = list(options)
        self._tls = tls
        self._program("postgres")

    @staticmethod
    def _program(name: str) -> str:
        return _find(
            name,
            places=("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"),
        )

    def command(self) -> list[str]:
        settings = [
            "fsync=off",
            "unix_socket_directories=",
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            *self._options,
        ]
        if self._tls:
            settings += [
                "ssl=on",
                f"ssl_cert_file={self.directory}/cert.pem",
                f"ssl_key_file={self.directory}/key.pem",
            ]
        return [
            self._program("postgres"),
            "-D",
            str(self.directory / "data"),
            *(f"--{one}" for one in settings),
        ]

    def start(self) -> PostgreSQLServer:
        if not (self.directory / "data").exists():
            self._run(
                [
                    self._program("initdb"),
                    "-D",
                    str(self.directory / "data"),
                    "-U",
                    "postgres",
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--locale=C",
                    "--no-sync",
                ]
            )
            if self._tls:
                self._run(
                    [
                        _find("openssl"),
                        "req",
                        "-x509",
                        "-newkey",
                        "rsa:2048",
                        "-nodes",
                        "-days",
                        "2",
                        "-subj",
                        "/CN=localhost",
                        "-keyout",
                        f"{self.directory}/key.pem",
                        "-out",
                        f"{self.directory}/cert.pem",
                    ]
                )
                os.chmod(self.directory / "key.pem", 0o600)
        super().start()
        with self.connect() as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = 'test'").fetchone() is None:
                connection.execute("CREATE DATABASE test")
        return self

    def connect(self, database: str = "postgres") -> Any:
        psycopg = pytest.importorskip("psycopg")
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=postgres dbname={database} connect_timeout=3",
            autocommit=True,
        )

    def url(self, driver: str = "psycopg") -> str:
        """Return the store's URL of the database ``test``."""
        return f"postgresql+{driver}://postgres@127.0.0.1:{self.port}/test"


class MariaDBServer(_Server):
    """A private MariaDB; user ``root``, database ``test``, no password.

    :param options: command line options, as ``--name=value``.
    """

    name = "mysql"

    def __init__(self, options: Sequence[str] = ()) -> None:
        super().__init__()
        self._options = list(options)
        _find("mariadbd", "mysqld")

    def command(self) -> list[str]:
        return [
            _find("mariadbd", "mysqld"),
            "--no-defaults",
            f"--datadir={self.directory}/data",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.directory}/socket",
            f"--pid-file={self.directory}/pid",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=2",
            *self._options,
        ]

    def start(self) -> MariaDBServer:
        if not (self.directory / "data").exists():
            self._run(
                [
                    _find("mariadb-install-db", "mysql_install_db"),
                    "--no-defaults",
                    f"--datadir={self.directory}/data",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                    "--skip-name-resolve",
                ]
            )
        super().start()
        connection = self.connect()
        connection.cursor().execute("CREATE DATABASE IF NOT EXISTS test")
        connection.close()
        return self

    def connect(self, database: str | None = None) -> Any:
        pymysql = pytest.importorskip("pymysql")
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            connect_timeout=3,
            read_timeout=10,
        )

    def url(self, driver: str = "pymysql") -> str:
        """Return the store's URL of the database ``test``."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/test"


class SilentServer:
    """A port that accepts connections and never says a word."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(50)
        self.port = int(self._socket.getsockname()[1])

    def __enter__(self) -> SilentServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


_private: list[_Server | RedisServer] = []


@cache
def shared_postgresql() -> str:
    """Return ``USER@HOST:PORT/DATABASE`` of a PostgreSQL that runs, or of one that is started for the tests.

    ``TEST_POSTGRESQL`` names another than ``postgres@127.0.0.1:5432/test``.
    """
    psycopg = pytest.importorskip("psycopg")
    place = os.environ.get("TEST_POSTGRESQL", "postgres@127.0.0.1:5432/test")

    def connect() -> None:
        psycopg.connect(f"postgresql://{place}", connect_timeout=3).close()

    return place if _works(connect) else _start(PostgreSQLServer(["max_connections=300"]).start())


@cache
def shared_mariadb() -> str:
    """Return ``USER@HOST:PORT/DATABASE`` of a MariaDB or MySQL, as :func:`shared_postgresql`.

    ``TEST_MYSQL`` names another than ``root@127.0.0.1:3306/test``.
    """
    pymysql = pytest.importorskip("pymysql")
    place = os.environ.get("TEST_MYSQL", "root@127.0.0.1:3306/test")

    def connect() -> None:
        user, _, rest = place.rpartition("@")
        name, _, password = user.partition(":")
        host, _, database = rest.partition("/")
        address, _, port = host.partition(":")
        pymysql.connect(
            host=address,
            port=int(port or 3306),
            user=name,
            password=password,
            database=database,
            connect_timeout=3,
        ).close()

    return place if _works(connect) else _start(MariaDBServer(["--max-connections=300"]).start())


@cache
def shared_redis() -> str:
    """Return the URL of a private Redis that all tests of this process share."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="sj-redis-"))).start()
    _private.append(server)
    return server.url


def stop_private_servers() -> None:
    """End the servers that were started to be shared."""
    while _private:
        server = _private.pop()
        server.kill()
        shutil.rmtree(server.directory, ignore_errors=True)


def _start(server: Any) -> str:
    _private.append(server)
    return str(server.url()).partition("://")[2]


def _works(connect: Callable[[], None]) -> bool:
    try:
        connect()
    except Exception:
        return False
    return True


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _descendants(pid: int) -> list[int]:
    """Return a process and all that came from it, the eldest first."""
    found = [pid]
    for one in found:
        for task in glob.glob(f"/proc/{one}/task/*/children"):
            with suppress(OSError):
                found += [int(child) for child in Path(task).read_text().split()]
    return found
