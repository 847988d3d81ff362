"""What can be done from the page: run now, pause, resume, unlock, and pause or resume all.

Owns each action's words and its call; whether a request may act at all is checked before, in ``dashboard.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import SingleJobError, StoreError
from .pages import JobGone

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["ACTIONS", "Action", "Refusal", "perform"]


class Refusal(Exception):
    """The action was not done; the message says why."""


@dataclass(frozen=True)
class Action:
    """One thing that can be done.

    :param verb: what the button says.
    :param consequence: what comes of it, for the page that asks.
    :param done: what the page says afterwards.
    :param target: ``job``, ``lock`` or ``cluster``.
    :param grave: True when it can do harm.
    """

    name: str
    verb: str
    consequence: str
    done: str
    target: str
    grave: bool = False


ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "run",
            "Run now",
            "An owner takes it up within moments, under the job's claim: it never overlaps a run that is going on, "
            "and its ticks by schedule stay as they are.",
            "The run was handed to the owners; it shows here as soon as one of them takes it.",
            "job",
        ),
        Action(
            "pause",
            "Pause",
            "No tick of the job runs on any host until it is resumed, over restarts and releases. A run that is going "
            "on is finished.",
            "The job is paused on every host.",
            "job",
        ),
        Action(
            "resume",
            "Resume",
            "The job runs again from its next tick on. What fell due during the pause is skipped.",
            "The job is resumed on every host.",
            "job",
        ),
        Action(
            "unlock",
            "Unlock",
            "The claim ends by force and its token grows: whoever holds it can write nothing back, but if it is still "
            "at work, it goes on working, and the next claim may run beside it. Do this only when the holder is "
            "known to be dead.",
            "The claim was ended.",
            "lock",
            grave=True,
        ),
        Action(
            "pause-all",
            "Pause all jobs",
            "No job of the cluster runs by schedule until all are resumed. Runs that are going on are finished.",
            "The whole cluster is paused.",
            "cluster",
            grave=True,
        ),
        Action(
            "resume-all",
            "Resume all jobs",
            "The cluster's jobs run again from their next ticks on; jobs that were paused by themselves stay paused. "
            "What fell due during the pause is skipped.",
            "The whole cluster is resumed.",
            "cluster",
        ),
    )
}


def _unlock(engine: Engine, name: str, kind: str, holder: str) -> None:
    if kind not in ("job", "lock", "once") or not holder:
        raise Refusal("Which claim is meant is not said: begin from the list of what is held.")
    if not engine.manager.unlock(name, kind=kind, holder=holder):
        raise Refusal("This claim has ended meanwhile, so nothing was done.")


def perform(engine: Engine, action: Action, *, id: str, kind: str = "", holder: str = "") -> None:
    """Do it.

    :param id: the job or the lock.
    :param kind: of a lock: ``job``, ``lock`` or ``once``.
    :param holder: the claim that holds it, so that only the one is ended that was looked at.
    :raises JobGone: when there is no such job.
    :raises Refusal: when it was not done, and why.
    :raises StoreError: when the store does not answer.
    """
    manager = engine.manager
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: manager.run(id, wait=False),
        "pause": lambda: manager.pause(id),
        "resume": lambda: manager.resume(id),
        "unlock": lambda: _unlock(engine, id, kind, holder),
        "pause-all": manager.pause_all,
        "resume-all": manager.resume_all,
    }
    try:
        calls[action.name]()
    except KeyError:
        # APScheduler's JobLookupError is one.
        if action.target == "job" and manager.job(id)[0] is None:
            raise JobGone(id) from None
        raise
    except SingleJobError as error:
        if isinstance(error, StoreError):
            raise
        raise Refusal(str(error)) from error
