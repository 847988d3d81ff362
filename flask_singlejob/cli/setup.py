"""Commands for setting up and looking after: init-db, import-jobs, doctor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .kit import command, json_option, one_line, print_json
from .text import Column, clean, moment, table, write

if TYPE_CHECKING:
    from ..doctor import Finding
    from ..engine import Engine

__all__ = ["doctor", "import_jobs", "init_db"]


@command("init-db", short_help="Make the store's tables, or upgrade them.")
@click.option("--sql", is_flag=True, help="Only print the statements, connect to nothing.")
def init_db(engine: Engine, sql: bool) -> None:
    """Make the store's tables, or upgrade them; also with SINGLEJOB_CREATE_TABLES=false.

    May be run again and again, and by several processes at once.
    """
    store = engine.store
    if sql:
        text = store.ddl()
        click.echo(text, nl=not text.endswith("\n"))
        return
    store.create()
    write(f"The tables are there and up to date: {clean(store.describe())}, prefix {store.table_prefix!r}.")


# -- import-jobs ---------------------------------------------------------------------------------------


@command("import-jobs", short_help="Copy the jobs of an APScheduler job store into this store.")
@click.argument("url")
@click.option("--dry-run", is_flag=True, help="Only report; write nothing.")
@click.option("--replace", is_flag=True, help="Replace jobs whose id exists already.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--table", "table_", default="apscheduler_jobs", show_default=True, help="SQL: the table.")
@click.option("--schema", help="SQL: the table's schema.")
@click.option("--jobs-key", default="apscheduler.jobs", show_default=True, help="Redis: the hash of jobs.")
@click.option("--database", default="apscheduler", show_default=True, help="MongoDB: the database.")
@click.option("--collection", default="jobs", show_default=True, help="MongoDB: the collection.")
@json_option
def import_jobs(
    engine: Engine,
    url: str,
    dry_run: bool,
    replace: bool,
    yes: bool,
    table_: str,
    schema: str | None,
    jobs_key: str,
    database: str,
    collection: str,
    json_: bool,
) -> None:
    """Copy the jobs of an APScheduler job store into this store, as stored jobs.

    URL names a SQLAlchemyJobStore's database, a RedisJobStore (redis://) or a MongoDBJobStore (mongodb://).
    That store is only read.

    Such stores hold pickles, and READING A PICKLE RUNS WHATEVER CODE IT HOLDS: calling this command is your
    word that you trust who could write to that store. On a terminal it asks (--yes does not); elsewhere the
    call itself counts. --dry-run reads the pickles too.

    Exit code 0: every job came, or exists here already. 1: some cannot come (each is told with its reason).
    """
    from .. import import_jobs as importing

    source = importing.Source(
        url=url, table=table_, schema=schema, jobs_key=jobs_key, database=database, collection=collection
    )
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        click.confirm(
            f"Reading the pickles of {one_line(source.name)} runs whatever code they hold. "
            "Do you trust who could write to it?",
            abort=True,
            err=True,
        )
    found = importing.import_jobs(engine, source, dry_run=dry_run, replace=replace)
    if json_:
        print_json({"source": source.name, "dry_run": dry_run, "jobs": [entry.to_dict() for entry in found]})
    else:
        _tell_import(found, source.name, dry_run)
    if any(entry.outcome == "refused" for entry in found):
        raise SystemExit(1)


def _tell_import(found: list[Any], name: str, dry_run: bool) -> None:
    came = [entry for entry in found if entry.outcome in ("imported", "replaced")]
    skipped = [entry for entry in found if entry.outcome == "exists"]
    refused = [entry for entry in found if entry.outcome == "refused"]
    if not found:
        write(f"{clean(name)} holds no jobs.")
        return
    if came:
        write("These would come:" if dry_run else "These came:")
        columns = [Column("JOB", 16, middle=True), Column("TRIGGER", 12), Column("NEXT TICK"), Column("", 8)]
        rows = [
            [
                entry.id,
                entry.trigger,
                "paused" if entry.paused else moment(entry.next_tick),
                "replaced" if entry.outcome == "replaced" else "",
            ]
            for entry in came
        ]
        for line in table(columns, rows, indent="  "):
            write(line)
    for title, entries in (("Left alone:", skipped), ("These cannot come:", refused)):
        if entries:
            write(title)
            for entry in entries:
                write(f"  {one_line(repr(entry.id))}: {one_line(entry.reason)}")
    word = "would come" if dry_run else "came"
    write(
        f"{len(came)} {word}, {len(skipped)} left alone, {len(refused)} cannot come."
        + (" Nothing was written." if dry_run else "")
    )


# -- doctor --------------------------------------------------------------------------------------------


@command("doctor", short_help="Look for what goes wrong in the field, each with its cure.")
@json_option
def doctor(engine: Engine, json_: bool) -> None:
    """Look for what goes wrong in the field: election, store, clocks, zones, hosts, servers, jobs.

    Run it as the user that the web app runs as, on one of its hosts. Exit code 0: nothing that needs a cure
    at once (warnings and notes may be there). 1: there is an error among the findings.
    """
    from ..doctor import examine

    found = examine(engine)
    errors = sum(finding.severity == "error" for finding in found)
    if json_:
        print_json({"ok": not errors, "findings": [finding.to_dict() for finding in found]})
    else:
        _tell_findings(found)
    if errors:
        raise SystemExit(1)


def _tell_findings(found: list[Finding]) -> None:
    for finding in found:
        write(f"{finding.severity.upper():7}  {finding.check}: {one_line(finding.finding)}")
        write(f"         cure: {one_line(finding.cure)}")
    counts = {
        word: sum(finding.severity == word for finding in found) for word in ("error", "warning", "note")
    }
    told = ", ".join(
        f"{number} {word}{'s' if number > 1 else ''}" for word, number in counts.items() if number
    )
    write(told or "nothing found: all is well")
