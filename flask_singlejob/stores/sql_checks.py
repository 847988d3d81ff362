"""What ``flask singlejob doctor`` tells of a database: version, isolation, rights, file system, failover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import text

from .schema import SCHEMA_VERSION, Tables
from .sql_create import undoubled, versions
from .sql_gateway import Gateway, Session

__all__ = ["NETWORK_FILE_SYSTEMS", "file_system_of", "findings"]

Finding = tuple[str, str]

NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "fuse.sshfs",
    "ceph",
    "glusterfs",
    "afs",
}
_INIT_DB = "Run 'flask singlejob init-db', or the statements that 'flask singlejob init-db --sql' prints."


def findings(gate: Gateway, tables: Tables) -> list[Finding]:
    """Return what should be told, each with its cure."""

    def work(session: Session) -> list[Finding]:
        own = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}[gate.kind]
        return _tables(session, tables) + own(session, gate, tables)

    return gate.call("checks", work)


def _tables(session: Session, tables: Tables) -> list[Finding]:
    found = versions(session, tables)
    if not found:
        return [("The store's tables are missing.", _INIT_DB)]
    version = found.get("schema_version", 1)
    if found.get("min_reader_version", 1) > SCHEMA_VERSION:
        return [
            (
                f"The store's tables are of version {version}, which this Flask-SingleJob may not use "
                f"(it knows {SCHEMA_VERSION}).",
                "Upgrade Flask-SingleJob here too.",
            )
        ]
    if version > SCHEMA_VERSION:
        return [
            (
                f"The store's tables are of version {version}, newer than this Flask-SingleJob's "
                f"{SCHEMA_VERSION}.",
                "Finish the deployment: both work side by side meanwhile.",
            )
        ]
    if version < SCHEMA_VERSION:
        return [(f"The store's tables are of version {version}, not {SCHEMA_VERSION}.", _INIT_DB)]
    return []


def _value(session: Session, statement: str, **parameters: Any) -> Any:
    return session.execute(text(statement), parameters).scalar()


def _postgresql(session: Session, gate: Gateway, tables: Tables) -> list[Finding]:
    found: list[Finding] = []
    if _value(session, "SELECT pg_is_in_recovery()"):
        found.append(
            ("The PostgreSQL server is a replica, which takes no writes.", "Point the store at the primary.")
        )
    level = str(_value(session, "SELECT current_setting('default_transaction_isolation')"))
    if level not in ("read committed", "read uncommitted"):
        found.append(
            (
                f"The server's default isolation is {level}; the store uses READ COMMITTED, at two more "
                f"round trips per statement.",
                "Nothing has to be done; ALTER ROLE ... SET default_transaction_isolation = 'read committed' "
                "for the store's user saves them.",
            )
        )
    if _value(session, "SELECT current_setting('synchronous_commit')") == "off":
        found.append(
            (
                "synchronous_commit is off: a crash of the server can take back the last claims, and their "
                "ticks run twice.",
                "Set synchronous_commit = on for the store's user.",
            )
        )
    preparer = session.connection.dialect.identifier_preparer
    for table in tables.all:
        name = undoubled(preparer.format_table(table), session.connection.dialect)
        missing = [
            right
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
            if _value(
                session,
                "SELECT has_table_privilege(to_regclass(:name), :privilege)",
                name=name,
                privilege=right,
            )
            is False
        ]
        if missing:
            found.append(
                (
                    f"The store's user lacks {', '.join(missing)} on {name}.",
                    f"GRANT {', '.join(missing)} ON {name} TO that user.",
                )
            )
    return found


def _mysql(session: Session, gate: Gateway, tables: Tables) -> list[Finding]:
    found: list[Finding] = []
    rows: Any = session.execute(
        text(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'read_only', 'binlog_format',"
            " 'log_bin', 'innodb_flush_log_at_trx_commit', 'group_replication_single_primary_mode')"
        )
    )
    variables = {str(name).lower(): str(value) for name, value in rows}
    multi = variables.get("wsrep_on") == "ON"
    if multi or variables.get("group_replication_single_primary_mode") == "OFF":
        found.append(
            (
                "The server is one of several that take writes (Galera, group replication): two of them may "
                "grant one claim, and one of the commits fails later.",
                "Point every process's store at the same server of the group.",
            )
        )
    if variables.get("read_only") == "ON":
        found.append(
            ("The server is read only (a replica?).", "Point the store at the server that takes writes.")
        )
    if variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT":
        found.append(
            (
                "The binary log is by statement, which forbids READ COMMITTED: lost races are more frequent.",
                "Set binlog_format to ROW or MIXED.",
            )
        )
    if variables.get("innodb_flush_log_at_trx_commit", "1") != "1":
        found.append(
            (
                "innodb_flush_log_at_trx_commit is not 1: a crash of the server can take back the last "
                "claims, and their ticks run twice.",
                "Set it to 1.",
            )
        )
    return found


def _sqlite(session: Session, gate: Gateway, tables: Tables) -> list[Finding]:
    found: list[Finding] = []
    mode = session.connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    if mode != "wal":
        found.append(
            (
                f"The SQLite file's journal mode is {mode}, so readers and writers wait for each other.",
                "Run PRAGMA journal_mode = WAL on it while nobody uses it.",
            )
        )
    path = gate.target.path
    kind = None if path is None else file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        found.append(
            (
                f"The SQLite file {path} is on a network file system ({kind}), where its locks cannot "
                f"be relied on.",
                "Move it to a local disk; several hosts need PostgreSQL, MySQL, MariaDB or Redis.",
            )
        )
    return found


def file_system_of(path: Path, mounts: str = "/proc/self/mounts") -> str | None:
    """Return the type of the file system that holds a path, or None where it cannot be told."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = Path(fields[1].replace("\\040", " "))
        if (mount == place or mount in place.parents) and (best is None or len(str(mount)) >= best[0]):
            best = (len(str(mount)), fields[2])
    return None if best is None else best[1]
