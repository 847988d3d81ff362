"""How the SQL store reaches its database: the pool, time limits, second tries, forks, transactions.

Owns every connection and the rule that each statement commits by itself, unless a transaction is
asked for, under READ COMMITTED whatever the server's default is. Knows no table. Uses neither
session state nor prepared statements on PostgreSQL, so it passes a pooler in transaction mode.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, SQLAlchemyError

from ..errors import ConfigError, StoreError
from .base import ANSWER_SECONDS
from .sql_faults import Fault, fault_of, reason_of
from .sql_forks import rest
from .sql_ready import Answer, Ready
from .sql_target import BUSY_SECONDS, CONNECT_SECONDS, Target, lend_listeners
from .sql_watch import Line, Watch, line_of

__all__ = ["Gateway", "Session", "Transaction"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_LINE = "singlejob_line"
_FILE = "singlejob_file"
_BUSY = "singlejob_busy"
#: A lost race is tried again for so long.
_CONFLICT_SECONDS = 3.0
_BEGIN = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED",
    "mysql": "START TRANSACTION",
}
_MYSQL_WAITS = "SET SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 5"
_STATEMENT_BINLOG = 1665

#: Many processes may make the tables at once, one after the other.
_CREATE_SECONDS = 20.0
#: The short verbs that write.
_WRITES = frozenset({"claim", "renew", "release", "settle", "expire", "put", "delete", "add_run"})

#: What a parent's connections are kept in where they cannot be made immortal.
_inherited: list[Any] = []


class Transaction:
    """One transaction under way; :meth:`undo` makes its end a rollback."""

    def __init__(self) -> None:
        self.undone = False

    def undo(self) -> None:
        """Write nothing of it."""
        self.undone = True


class Session:
    """One connection while one verb uses it.

    :ivar again: True when an earlier try of the same verb ended without an answer, so that it may
        have been carried out.
    """

    def __init__(self, connection: Connection, kind: str, again: bool, deadline: float) -> None:
        self.connection = connection
        self.again = again
        self._kind = kind
        self._deadline = deadline
        #: How many milliseconds SQLite waits for another's lock; None: it is no SQLite.
        self._busy: int | None = connection.info.get(_BUSY) if kind == "sqlite" else None
        level = connection.dialect.default_isolation_level
        # Under another default of the server even a single statement needs a transaction of its own.
        self._wrapped = kind == "postgresql" and level not in ("READ COMMITTED", "READ UNCOMMITTED")
        self._inside = False

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Execute a statement; outside of a transaction it commits by itself."""
        if self._wrapped and not self._inside:
            with self.transaction():
                return self._execute(statement, parameters)
        return self._execute(statement, parameters)

    def run(self, ready: Ready, values: Mapping[str, Any]) -> Answer:
        """Execute a statement that is compiled already; outside of a transaction it commits by itself.

        It goes to the driver's cursor directly: what SQLAlchemy does around a statement takes about as long as a
        local database does. Errors are SQLAlchemy's all the same.
        """
        if self._wrapped and not self._inside:
            with self.transaction():
                return self._run(ready, values)
        return self._run(ready, values)

    def _run(self, ready: Ready, values: Mapping[str, Any]) -> Answer:
        self._limit_wait()
        driver = self.connection.connection
        dialect = self.connection.dialect
        errors: Any = dialect.loaded_dbapi.Error
        cursor = driver.cursor()
        try:
            cursor.execute(ready.text, ready.parameters(values))
            return Answer(ready.all(cursor), cursor.rowcount)
        except errors as error:
            gone = dialect.is_disconnect(error, driver, cursor)
            raise DBAPIError.instance(
                ready.text,
                None,
                error,
                errors,
                hide_parameters=True,
                connection_invalidated=gone,
                dialect=dialect,
            ) from error
        finally:
            try:  # noqa: SIM105 - this is done for each claim
                cursor.close()
            except Exception:
                pass

    def _execute(self, statement: Executable, parameters: Any) -> CursorResult[Any]:
        self._limit_wait()
        result = self.connection.execute(statement, parameters)
        assert isinstance(result, CursorResult)
        return result

    def _limit_wait(self) -> None:
        """Let SQLite wait no longer than the verb may: each of its statements begins to wait anew."""
        if self._busy is None:
            return
        left = max(0, round((self._deadline - time.monotonic()) * 1000))
        if left < self._busy:
            _set_busy(self.connection.connection, left)
            self._busy = left

    def restore(self) -> None:
        """Leave the connection as it was found."""
        connection = self.connection
        if self._busy is None or connection.closed or connection.invalidated:
            return
        usual = connection.info[_BUSY]
        if self._busy != usual:
            _set_busy(connection.connection, usual)

    def fault(self, error: DBAPIError) -> Fault:
        """Return what an error means."""
        return fault_of(error, self._kind)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Make the statements inside one transaction."""
        transaction = Transaction()
        self._limit_wait()
        self.connection.exec_driver_sql(_BEGIN[self._kind])
        self._inside = True
        try:
            yield transaction
            self._limit_wait()
            self.connection.exec_driver_sql("ROLLBACK" if transaction.undone else "COMMIT")
        except BaseException:
            self._abandon()
            raise
        finally:
            self._inside = False

    def _abandon(self) -> None:
        connection = self.connection
        if connection.closed or connection.invalidated:
            return
        try:
            connection.exec_driver_sql("ROLLBACK")
        except Exception:
            # SQLite rolls back by itself at some errors; anything else: nobody may use it again.
            if self._kind != "sqlite" or getattr(connection.connection, "in_transaction", True):
                connection.invalidate()


class _Turn:
    """A lock that is waited for until a deadline, and done without after it.

    :param deadline: on ``time.monotonic()``.
    """

    __slots__ = ("_deadline", "_lock", "_taken")

    def __init__(self, lock: threading.Lock, deadline: float) -> None:
        self._lock = lock
        self._deadline = deadline
        self._taken = False

    def __enter__(self) -> None:
        self._taken = self._lock.acquire(timeout=max(0.0, self._deadline - time.monotonic()))

    def __exit__(self, *raised: object) -> None:
        if self._taken:
            self._lock.release()


_NO_TURN = contextlib.nullcontext()


class Gateway:
    """The connections of one SQL store.

    :raises ConfigError: if an option is not one of ``create_engine``.
    """

    def __init__(self, target: Target, *, explain: Callable[[Fault], str]) -> None:
        self.target = target
        self.kind = target.kind
        self._explain = explain
        self._watch: Watch | None = None if target.kind == "sqlite" else Watch()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._open: dict[int, Any] = {}
        self._pid = os.getpid()
        self._read_committed = True
        self.engine = self._make_engine()
        #: Around each use of a connection; not around the pauses between two tries.
        self._using: AbstractContextManager[Any] = _NO_TURN
        if self._watch is not None:
            weakref.finalize(self, self._watch.stop)
        else:
            self._using = rest
            rest.add(self)

    # -- making it ----------------------------------------------------------------------------

    def _make_engine(self) -> Engine:
        target = self.target
        options: dict[str, Any] = dict(target.engine_options)
        if not {"poolclass", "pool"} & set(options):
            # Opened as needed: jobs that fall due together claim at once, and do not connect anew each time.
            options = {"pool_size": 5, "max_overflow": 15, "pool_timeout": CONNECT_SECONDS, **options}
        if self.kind == "postgresql":
            options.setdefault("use_native_hstore", False)
        levels = dict(options.pop("execution_options", None) or {})
        levels.pop("isolation_level", None)
        # The statements' one joined row of the clock would count as a cartesian product.
        options["enable_from_linting"] = False
        options |= {
            "isolation_level": "AUTOCOMMIT",
            "execution_options": levels,
            "pool_reset_on_return": None,
        }
        try:
            engine = create_engine(target.url, connect_args=target.connect_args, **options)
        except (TypeError, ArgumentError) as error:
            raise ConfigError(
                f"The options of the store {target.describe()} cannot be used: {reason_of(error)}. They are "
                f"keyword arguments of SQLAlchemy's create_engine."
            ) from error
        # Nothing is ever left to the driver to commit or roll back; some send a statement for it.
        engine.dialect.do_rollback = _nothing  # type: ignore[method-assign, assignment]
        engine.dialect.do_commit = _nothing  # type: ignore[method-assign, assignment]
        if target.lender is not None:
            lend_listeners(engine, target.lender)
        event.listen(engine, "do_connect", self._about_to_connect)
        event.listen(engine, "connect", self._connected, insert=True)
        event.listen(engine, "checkout", self._checked_out)
        event.listen(engine, "close", self._closed)
        return engine

    def _connected(self, connection: Any, record: Any) -> None:
        self._open[id(record)] = connection
        if self._watch is not None:
            line = record.info[_LINE] = line_of(connection)
            self._watch.attach(line)
        if self.kind == "sqlite":
            record.info[_FILE] = self._file()
            record.info[_BUSY] = _prepare_sqlite(connection)
        elif self.kind == "mysql":
            with connection.cursor() as cursor:
                cursor.execute(_MYSQL_WAITS)
                if self._read_committed:
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def _checked_out(self, connection: Any, record: Any, proxy: Any) -> None:
        if self._watch is not None:
            self._watch.attach(record.info.get(_LINE))
        elif record.info.get(_FILE) != self._file():
            raise DisconnectionError("the SQLite file was deleted or replaced")

    def _closed(self, connection: Any, record: Any) -> None:
        self._open.pop(id(record), None)
        line: Line | None = record.info.pop(_LINE, None)
        if line is not None and self._watch is not None:
            self._watch.detach(line)

    def _file(self) -> tuple[int, int] | None:
        if self.target.path is None:
            return None
        try:
            found = os.stat(self.target.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    # -- using it -----------------------------------------------------------------------------

    def call(self, verb: str, work: Callable[[Session], T]) -> T:
        """Do the work of a verb on a connection, within its time limit (:data:`ANSWER_SECONDS`).

        It is done once more when the connection broke, with ``again`` set, and for a while when
        another transaction was in the way.

        :raises StoreError: when it cannot be done.
        """
        if os.getpid() != self._pid:
            self.after_fork()
        if self._watch is None:
            return self._call(verb, work, time.monotonic() + _limit(verb), lambda: False)
        with self._watch.guard(_limit(verb)) as guard:
            return self._call(verb, work, guard.deadline, lambda: guard.expired)

    def _call(
        self, verb: str, work: Callable[[Session], T], deadline: float, expired: Callable[[], bool]
    ) -> T:
        again = False
        pause = 0.0
        conflicts_until = deadline - ANSWER_SECONDS + _CONFLICT_SECONDS
        while True:
            if pause:
                time.sleep(pause)
                pause = 0.0
            with self._using:
                try:
                    connection = self._connect()
                except Exception as error:
                    raise self._trouble(verb, error, expired()) from (getattr(error, "orig", None) or error)
                try:
                    with connection, self._turn(verb, deadline):
                        session = Session(connection, self.kind, again, deadline)
                        try:
                            return work(session)
                        except DBAPIError as error:
                            fault = fault_of(error, self.kind)
                            if fault in (Fault.GONE, Fault.READ_ONLY, Fault.OTHER):
                                connection.invalidate()
                            raise
                        finally:
                            session.restore()
                except DBAPIError as error:
                    if fault is Fault.CONFLICT and time.monotonic() < conflicts_until:
                        pause = random.uniform(0.002, 0.03)
                        continue
                    time_left = deadline - time.monotonic() > CONNECT_SECONDS
                    if fault is Fault.GONE and time_left and not (again or expired()):
                        log.debug(
                            "%s: the connection to %s broke; trying another", verb, self.target.describe()
                        )
                        again = True
                        continue
                    if fault is Fault.OTHER and self._refuses_read_committed(error):
                        continue
                    if fault in (Fault.GONE, Fault.READ_ONLY):
                        # After a failover the other connections lead to the wrong server as well.
                        self.engine.dispose()
                    raise self._trouble(verb, error, expired(), fault) from error.orig
                except (SQLAlchemyError, UnicodeError) as error:
                    raise self._trouble(verb, error, expired()) from error

    def _turn(self, verb: str, deadline: float) -> AbstractContextManager[Any]:
        """Return what waits for the threads of this process that write to the same SQLite file.

        SQLite lets one write at a time and has the others look again after a pause. Nothing depends on the turn.
        """
        # So much before the deadline as SQLite itself may wait for other processes.
        return (
            _Turn(self._writing, deadline - BUSY_SECONDS)
            if self.kind == "sqlite" and verb in _WRITES
            else _NO_TURN
        )

    def _connect(self) -> Connection:
        return self.engine.connect()

    def _about_to_connect(self, *given: Any) -> None:
        """Make the directory of an SQLite file before the driver makes the file."""
        path = self.target.path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def _trouble(
        self, verb: str, error: BaseException, expired: bool, fault: Fault = Fault.OTHER
    ) -> StoreError:
        if isinstance(error, DBAPIError) and fault is Fault.OTHER:
            fault = fault_of(error, self.kind)
        reason = f"no answer within {_limit(verb):g} s" if expired else reason_of(error)
        return StoreError(
            f"{verb}: the store {self.target.describe()} failed: {reason}{self._explain(fault)}"
        )

    def _refuses_read_committed(self, error: DBAPIError) -> bool:
        """Tell whether the server's binary log forbids READ COMMITTED; later connections do without it."""
        number = error.orig.args[0] if error.orig is not None and error.orig.args else None
        if self.kind != "mysql" or number != _STATEMENT_BINLOG or not self._read_committed:
            return False
        self._read_committed = False
        self.engine.dispose()
        return True

    # -- ending it ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection that is not in use just now."""
        with self._using:
            self.close_idle()
        if self._watch is not None:
            self._watch.stop()

    def close_idle(self) -> None:
        """Close the connections in the pool; the next verb opens new ones."""
        self.engine.dispose()

    def after_fork(self) -> None:
        """Forget the parent's connections: closing one here would end the parent's session."""
        self._pid = os.getpid()
        for connection in list(self._open.values()):
            _keep_for_ever(connection)
        _keep_for_ever(self.engine.pool)
        self._open = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self.engine.dispose(close=False)
        if self._watch is not None:
            self._watch.after_fork()


def _limit(verb: str) -> float:
    """Return the seconds that a verb may take."""
    return _CREATE_SECONDS if verb == "create" else ANSWER_SECONDS


def _nothing(connection: Any) -> None:
    """Leave the end of a transaction to the statements COMMIT and ROLLBACK."""


def _keep_for_ever(thing: Any) -> None:
    """Keep a thing from being deleted, even when the interpreter ends: some drivers say goodbye then."""
    try:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    except Exception:
        _inherited.append(thing)


def _set_busy(connection: Any, milliseconds: int) -> None:
    connection.cursor().execute(f"PRAGMA busy_timeout = {milliseconds}")


def _prepare_sqlite(connection: Any) -> int:
    """Turn on the write-ahead log, so that readers and one writer do not wait for each other.

    :returns: how many milliseconds the connection waits for another's lock.
    """
    # FULL: a claim that a power failure takes back would let its tick run twice.
    connection.execute("PRAGMA synchronous = FULL")
    busy = int(connection.execute("PRAGMA busy_timeout").fetchone()[0])
    # What is waited for here has to leave time for what the connection is opened for.
    _set_busy(connection, min(busy, 100))
    until = time.monotonic() + 2
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            break
        except Exception as error:
            # Changing it does not wait for others; without it the store is slower, not wrong.
            if "locked" not in str(error):
                raise
            if time.monotonic() > until:
                break
            time.sleep(random.uniform(0.005, 0.05))
    _set_busy(connection, busy)
    return busy
