"""Who owns this host's schedule: electors, the campaign over them, and proof that a process is dead.

Knows nothing of Flask, jobs or stores.
"""

from __future__ import annotations

from .alive import AliveFile
from .base import ElectionTrouble, Elector
from .campaign import Campaign, Declined, Hooks
from .file import FileElector, probe
from .places import alive_directory, instance_tag, lock_path, private_directory
from .socket import SocketElector, default_port

__all__ = [
    "AliveFile",
    "Campaign",
    "Declined",
    "ElectionTrouble",
    "Elector",
    "FileElector",
    "Hooks",
    "SocketElector",
    "alive_directory",
    "default_port",
    "instance_tag",
    "lock_path",
    "make_elector",
    "private_directory",
    "probe",
]


def make_elector(
    kind: str,
    *,
    identity: str,
    lock_file: str | None = None,
    port: int | None = None,
    instance: str | None = None,
) -> Elector:
    """Return the elector of a kind; nothing is opened before its first use.

    :param kind: ``file`` or ``socket``.
    :param identity: what tells this election from others: user, cluster, host id, store, prefix.
    :param lock_file: for ``file``: the configured path; None: the default one.
    :param port: for ``socket``: the configured port; None: the one derived from the identity.
    :param instance: the random name of this process, shown by :func:`probe`.
    :raises ValueError: for any other kind.
    """
    if kind == "file":
        return FileElector(lock_file, identity=identity, instance=instance)
    if kind == "socket":
        return SocketElector(default_port(identity) if port is None else port, identity)
    raise ValueError(f"no election of kind {kind!r}: use 'file' or 'socket'")
