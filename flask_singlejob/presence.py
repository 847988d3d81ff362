"""What proves this process alive to the others of its host, and them to it.

Without a place for its file only the lease tells others of this process's death: warned of once, never fatal.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from datetime import datetime, timezone
from typing import Any

from .claims import DeathProof
from .election import AliveFile, alive_directory, instance_tag

__all__ = ["Presence"]

logger = logging.getLogger(__name__)


class Presence:
    """This process's alive file, and the look at those of its peers.

    :param lock_file: the configured lock file; the alive files then lie beside it.
    :param instance: the random name of this process.
    """

    def __init__(self, lock_file: str | None, instance: str) -> None:
        self._lock_file = lock_file
        self._instance = instance
        self._alive: AliveFile | None = None
        self._election = ""
        self.proof: DeathProof | None = None

    def hold(self) -> None:
        """Hold the file from now on. Harmless when it is held."""
        if self._alive is not None:
            return
        try:
            alive = AliveFile(alive_directory(self._lock_file), self._instance)
            if alive.acquire():
                self._alive = alive
                self.proof = DeathProof(instance_tag(), alive.is_dead)
        except OSError as error:
            logger.warning(
                "no file can prove this process alive; its death shows when its leases end: %s", error
            )

    def renew(self) -> None:
        """Touch the file, and make it again if somebody deleted it."""
        if self._alive is not None:
            with contextlib.suppress(OSError):
                self._alive.acquire()

    def leave(self) -> None:
        """Remove the file: this process holds no claim. The next :meth:`hold` makes another."""
        alive, self._alive = self._alive, None
        if alive is not None:
            alive.release()

    def sweep(self) -> None:
        """Remove the files of processes that are long dead."""
        if self._alive is not None:
            self._alive.sweep()

    def tell_peers(self, identity: str) -> None:
        """Let this host's owner count its workers, without a connection of theirs to the store.

        :param identity: the election's.
        """
        self._election = hashlib.sha256(identity.encode()).hexdigest()[:16]
        if self._alive is not None:
            since = datetime.now(timezone.utc).isoformat()
            self._alive.tell({"pid": os.getpid(), "since": since, "election": self._election})

    def workers(self) -> list[dict[str, Any]] | None:
        """Return pid and start of this host's living workers; None where that cannot be known."""
        if self._alive is None:
            return None
        found = [told for told in self._alive.living() if told.get("election") == self._election]
        return sorted(
            ({"pid": told.get("pid"), "since": told.get("since")} for told in found),
            key=lambda worker: str(worker["since"]),
        )
