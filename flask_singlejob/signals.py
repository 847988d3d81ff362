"""The signals that tell an app what its jobs do, and the one way to send them.

Receivers are ``receiver(app, **arguments)``; ``app`` is the Flask object itself, never a proxy, and connects
them to one app: ``run_failed.connect(tell_me, sender=app)``. As always with blinker a receiver is held
weakly: keep it alive, or connect it with ``weak=False``. Accept ``**extra``: arguments may be added.
Each is sent once in the cluster, by the process that recorded it, in an app context. Sending is not
part of the record: a process killed between the two has recorded and sent nothing.
"""

from __future__ import annotations

import logging
from inspect import iscoroutinefunction
from typing import Any

from blinker import NamedSignal, Namespace

__all__ = [
    "lease_lost",
    "owner_elected",
    "owner_resigned",
    "run_failed",
    "run_lost",
    "run_missed",
    "run_overran",
    "run_skipped",
    "run_started",
    "run_succeeded",
    "send",
]

logger = logging.getLogger(__name__)

_namespace = Namespace()

# This process became its host's owner. No arguments.
owner_elected: NamedSignal = _namespace.signal("owner-elected")

# This process gave its host's ownership up or lost it; sent by a process that lives. No arguments.
owner_resigned: NamedSignal = _namespace.signal("owner-resigned")

# A run begins, under its claim, before the job's function is called. run=Run (status running).
run_started: NamedSignal = _namespace.signal("run-started")

# A run ended well and the store has it. run=Run.
run_succeeded: NamedSignal = _namespace.signal("run-succeeded")

# A job raised. run=Run with its traceback in ``error``; exception=the exception.
run_failed: NamedSignal = _namespace.signal("run-failed")

# A tick fell due while the job could not run by its own doing. run=Run with ``reason`` and ``count``.
run_skipped: NamedSignal = _namespace.signal("run-skipped")

# A tick was not run within its grace time. run=Run with ``reason`` and ``count``.
run_missed: NamedSignal = _namespace.signal("run-missed")

# A run's process died; sent by the process that found it out, seldom the one that ran it. run=Run.
run_lost: NamedSignal = _namespace.signal("run-lost")

# A run goes on beyond its max_runtime, without a lease from now on. run=Run as it is recorded (status failed,
# reason max_runtime). Nothing is sent when it ends.
run_overran: NamedSignal = _namespace.signal("run-overran")

# A run goes on though its lease is lost: another process may do the same work. run=Run (status running).
lease_lost: NamedSignal = _namespace.signal("lease-lost")


def send(signal: NamedSignal, app: Any, **arguments: Any) -> None:
    """Call every receiver of a signal; one that raises is logged and harms nothing.

    A receiver's ``SystemExit`` is logged too: ending the thread that schedules jobs is not a receiver's to
    decide. ``KeyboardInterrupt`` and gevent's ``GreenletExit`` come from outside, not from the receiver:
    they are let out once the other receivers were called.

    :param app: a Flask app, or a proxy of one (its receivers get the app itself).
    """
    unwrap = getattr(app, "_get_current_object", None)
    if unwrap is not None:
        app = unwrap()
    if signal.is_muted:
        return
    from_outside: BaseException | None = None
    # Not signal.send(): the first receiver that raises would keep the others from being called.
    for receiver in list(signal.receivers_for(app)):
        try:
            if iscoroutinefunction(receiver):
                app.ensure_sync(receiver)(app, **arguments)
            else:
                receiver(app, **arguments)
        except (Exception, SystemExit):
            logger.exception("A receiver of the signal %s failed: %r", signal.name, receiver)
        except BaseException as error:
            from_outside = error
    if from_outside is not None:
        raise from_outside
