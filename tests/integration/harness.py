"""Starts real servers as hosts of a cluster, side by side on one machine, and looks at them from outside.

A host has a process group, a lock file, a runtime directory, a host id, an instance path and, if asked
for, a wall clock of its own. Who owns a host is read from the kernel, never from the product. Everything
that was started is killed at the end, also when the test run itself is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .apps.witness import VARIABLE, tell_to
from .checker import Expected, OwnerSample, Report, WitnessedRun, check, read_events, runs_of
from .clock import HostClock, cache_directory
from .waiting import wait_until

__all__ = ["Cluster", "Host", "Process", "Response", "free_port", "listening_ports"]

PROJECT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60.0


class _Reaper:
    """The process that outlives a killed test run for a moment and kills what it left."""

    _pipe: IO[str] | None = None

    @classmethod
    def tell(cls, line: str) -> None:
        if cls._pipe is None:
            script = str(Path(__file__).with_name("reaper.py"))
            process = subprocess.Popen(
                [sys.executable, "-I", script], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            assert process.stdin is not None
            cls._pipe = process.stdin
        cls._pipe.write(line + "\n")
        cls._pipe.flush()


class Response:
    """The answer to a request: ``status``, ``text``, ``headers`` and ``json()``."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.status = status
        self.text = body.decode(errors="replace")
        self.headers = headers

    def json(self) -> Any:
        """Return the body read as JSON."""
        return json.loads(self.text)


class Process:
    """A server (or any program) with the surroundings of one host.

    :param argv: the command; ``{port}`` in an argument becomes the port.
    :param directory: a directory of its own for this host's files; made when missing.
    :param config: ``SINGLEJOB_*`` and other Flask keys, handed over as ``FLASK_…`` in the environment.
    :param env: further environment variables.
    :param clock: seconds that this host's wall clock is ahead; None for the machine's own clock.
    :param port: the port to expect, None for one that is free now, 0 for a program that serves nothing.
    :param lock_file: False leaves the product's default path, below this host's runtime directory.
    :param witness: the file that jobs tell their runs to.
    :param cwd: the working directory, this host's own by default; modules are found from the project's.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        clock: float | None = None,
        port: int | None = None,
        lock_file: bool = True,
        witness: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.runtime = directory / "run"
        self.runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log_path = directory / "log"
        self.instance = directory / "instance"
        self.witness = witness or directory / "witness.jsonl"
        self.lock_file: Path | None = self.runtime / "owner.lock" if lock_file else None
        self.clock = None if clock is None else HostClock(directory, offset=clock)
        self.port = free_port() if port is None else port
        self.argv = [part.replace("{port}", str(self.port)) for part in argv]
        self.cwd = cwd or directory  # not the project's, whose gunicorn.conf.py gunicorn would read
        settings: dict[str, Any] = {"SINGLEJOB_HOST_ID": name}
        if self.lock_file:
            settings["SINGLEJOB_LOCK_FILE"] = str(self.lock_file)
        settings.update(config or {})
        self.election_port: int | None = None
        if settings.get("SINGLEJOB_ELECTION") == "socket":
            self.election_port = int(settings.setdefault("SINGLEJOB_ELECTION_PORT", free_port()))
        self.env = self._environment(settings, env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def _environment(self, settings: Mapping[str, Any], extra: Mapping[str, str]) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLASK_", "SINGLEJOB_", "GUNICORN_", "WERKZEUG_", "PYTEST_", "COV_"))
        }
        env = {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            # Each worker compiles nothing that another one has: much of a boot, where it is not allowed.
            "PYTHONPYCACHEPREFIX": str(cache_directory() / "pycache"),
            "PYTHONDONTWRITEBYTECODE": "",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "TMPDIR": str(self.runtime),
            "HOME": str(self.directory),
            "SINGLEJOB_TEST_INSTANCE": str(self.instance),
            VARIABLE: str(self.witness),
        }
        for key, value in settings.items():
            env["FLASK_" + key] = json.dumps(value)
        if self.clock:
            env.update(self.clock.environment())
        env.update(extra)
        return env

    # -- life ---------------------------------------------------------------------------------

    def start(self, *, ready: bool = True) -> Process:
        """Start the program, and wait until it answers unless ``ready`` is False."""
        assert self._process is None or self._process.poll() is not None, f"{self.name} runs already"
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _Reaper.tell(f"+{self.pid}")
        if ready:
            self.wait_ready()
        return self

    @property
    def pid(self) -> int:
        """The process that was started: gunicorn's arbiter, or the program itself; also its group."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_ready(self, deadline: float = READY_SECONDS) -> None:
        """Wait until the server answers a request."""

        def answers() -> bool:
            if self.returncode is not None:
                raise AssertionError(f"{self.name} ended with {self.returncode}:\n{self.log_tail()}")
            return self._answers()

        wait_until(answers, deadline, f"{self.name} answers a request")

    def _answers(self) -> bool:
        return self.get("/pid").status == 200 if self.port else True

    def stop(self, deadline: float = 60.0, *, sig: int = signal.SIGTERM) -> int:
        """Ask the program to stop, wait for it, reap what is left of its group; return its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self._process.send_signal(sig)
            try:
                self._process.wait(deadline)
            except subprocess.TimeoutExpired:
                self.kill_all()
                raise AssertionError(
                    f"{self.name} did not stop within {deadline:g} s:\n{self.log_tail()}"
                ) from None
        code = self._process.returncode
        self.kill_all()
        return code

    def kill_all(self) -> None:
        """Kill the whole group: arbiter, workers and whatever they forked, all at once."""
        if self._process is None:
            return
        members = self.processes()
        now = time.monotonic()
        for pid in members:
            tell_to(str(self.witness), "killed", killed=pid, host=self.name, mono=now)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not self.processes(), 20, f"all processes of {self.name} are gone")
        _Reaper.tell(f"-{self.pid}")
        self._process = None

    # -- processes ----------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Return the living members of the process group, oldest first."""
        process = self._process  # a sampling thread may look while it is stopped
        if process is None:
            return []
        members = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                stat = _stat(int(entry))
                if stat is not None and int(stat[2]) == process.pid and stat[0] not in "ZX":
                    members.append((int(stat[19]), int(entry)))
        return [pid for _, pid in sorted(members)]

    def signal(self, pid: int, sig: int) -> None:
        """Send a signal to one process of this host; the witness is told when it kills."""
        if sig == signal.SIGKILL:
            tell_to(str(self.witness), "killed", killed=pid, host=self.name)
        os.kill(pid, sig)

    def kill(self, pid: int) -> None:
        """Kill one process at once and wait until it is gone."""
        self.signal(pid, signal.SIGKILL)
        wait_until(lambda: pid not in self.processes(), 20, f"process {pid} of {self.name} is gone")

    def freeze(self, pid: int) -> None:
        """Stop one process with SIGSTOP and wait until it stands still."""
        self.signal(pid, signal.SIGSTOP)
        wait_until(lambda: (_stat(pid) or "?")[0] == "T", 20, f"process {pid} stands still")

    def thaw(self, pid: int) -> None:
        """Let a frozen process go on."""
        self.signal(pid, signal.SIGCONT)

    # -- owner --------------------------------------------------------------------------------

    def owners(self) -> tuple[int, ...]:
        """Return the processes that the kernel says hold this host's lock file, also a deleted one, or
        listen on its election port.
        """
        members = self.processes()
        if self.election_port is not None:
            ports = listening_ports(members)
            return tuple(pid for pid in members if self.election_port in ports[pid])
        if self.lock_file is None:
            raise AssertionError("owners() needs a host with its own lock file")
        return tuple(pid for pid in members if holds_lock(pid, self.lock_file))

    def owner_pid(self, deadline: float = 20.0) -> int:
        """Return the owner, waiting until there is one."""
        return wait_until(self.owners, deadline, f"{self.name} has an owner")[0]

    # -- looking ------------------------------------------------------------------------------

    def get(self, path: str, *, timeout: float = 30.0, method: str = "GET", data: Any = None) -> Response:
        """Request a path; ``data`` is sent as JSON. Error statuses are answers, not exceptions."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=body,
            method=method,
            headers={"Content-Type": "application/json", "Connection": "close"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Response(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.read(), dict(error.headers))

    def post(self, path: str, data: Any = None, *, timeout: float = 30.0) -> Response:
        """Send JSON to a path."""
        return self.get(path, method="POST", data=data or {}, timeout=timeout)

    @property
    def log(self) -> str:
        """All that the host's processes wrote to standard output and error."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 80) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.splitlines()[-lines:])


class Host(Process):
    """One gunicorn as one host.

    :param app: the app as gunicorn takes it.
    :param python: the interpreter whose gunicorn is used.
    :param flags: further arguments of gunicorn.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path,
        app: str = "tests.integration.apps.basic:create_app()",
        workers: int = 4,
        worker_class: str = "sync",
        preload: bool = False,
        flags: Sequence[str] = (),
        python: str = sys.executable,
        **options: Any,
    ) -> None:
        # Not "-m gunicorn": the arbiter that USR2 starts would find gunicorn.http as "http".
        command = [python, str(Path(python).with_name("gunicorn"))]
        argv = [*command, "--bind", "127.0.0.1:0", "--workers", str(workers)]
        argv += ["--worker-class", worker_class, *(["--preload"] if preload else []), *flags, app]
        super().__init__(name, argv, directory=directory, port=0, **options)
        self.worker_count = workers

    def start(self, *, ready: bool = True) -> Host:
        self.port = 0
        super().start(ready=ready)
        return self

    def _answers(self) -> bool:
        if not self.port:
            found = re.findall(r"Listening at: https?://127\.0\.0\.1:(\d+) \((\d+)\)", self.log)
            self.port = next((int(port) for port, pid in reversed(found) if int(pid) == self.pid), 0)
        return bool(self.port) and len(self.workers()) >= self.worker_count and super()._answers()

    def masters(self) -> list[int]:
        """Return the arbiters, the oldest first: after USR2 there are two."""
        members = self.processes()
        masters = [self.pid] if self.pid in members else []
        for pid in members:
            parent = _environ(pid).get("GUNICORN_PID")
            stat = _stat(pid)
            if parent is None or stat is None or pid == self.pid:
                continue
            if stat[1] == parent or int(stat[1]) not in members:
                masters.append(pid)
        return masters

    def workers(self, master: int | None = None) -> list[int]:
        """Return the living worker processes, the oldest first; with ``master`` only that arbiter's."""
        masters = self.masters()
        parents = {str(pid) for pid in (masters if master is None else [master])}
        return [pid for pid in self.processes() if pid not in masters and (_stat(pid) or "??")[1] in parents]

    def wait_workers(self, count: int, deadline: float = READY_SECONDS) -> list[int]:
        """Wait until there are exactly so many workers."""
        wait_until(lambda: len(self.workers()) == count, deadline, f"{self.name} has {count} workers")
        return self.workers()

    def wait_loaded(self, deadline: float = READY_SECONDS) -> list[int]:
        """Wait until each worker's own factory has told the witness ``loaded`` (not with ``--preload``)."""

        def all_loaded() -> list[int]:
            workers = self.workers()
            loaded = {event["pid"] for event in read_events(self.witness) if event["event"] == "loaded"}
            return workers if len(workers) >= self.worker_count and loaded.issuperset(workers) else []

        return wait_until(all_loaded, deadline, f"all workers of {self.name} have loaded the app")

    def reload(self) -> None:
        """Send HUP and wait until each old worker is gone and as many new ones are there."""
        old = set(self.workers())
        os.kill(self.pid, signal.SIGHUP)
        wait_until(
            lambda: not old & set(self.workers()) and len(self.workers()) >= len(old),
            READY_SECONDS,
            f"{self.name} has new workers only",
        )

    def more_workers(self) -> None:
        """Send TTIN: one worker more."""
        os.kill(self.pid, signal.SIGTTIN)

    def fewer_workers(self) -> None:
        """Send TTOU: one worker less."""
        os.kill(self.pid, signal.SIGTTOU)

    def upgrade(self, deadline: float = READY_SECONDS) -> int:
        """Send USR2 and wait for the second arbiter's workers; return its pid."""
        before = self.masters()
        os.kill(before[-1], signal.SIGUSR2)
        wait_until(lambda: len(self.masters()) > len(before), deadline, f"{self.name} has a new arbiter")
        new = next(pid for pid in self.masters() if pid not in before)
        wait_until(
            lambda: len(self.workers(new)) >= self.worker_count,
            deadline,
            f"the new arbiter of {self.name} has its workers",
        )
        return new


class Cluster:
    """Several hosts on one store, one witness for all, and the judgement at the end.

    :param directory: a directory for everything.
    :param store: the store's URL for all hosts; None leaves the default, which only one host can use.
    """

    def __init__(self, directory: Path, *, store: str | None = None) -> None:
        self.directory = directory
        self.witness = directory / "witness.jsonl"
        self.store = store
        self.hosts: list[Process] = []
        self.samples: list[OwnerSample] = []
        self._sampling = threading.Event()
        self._sampler: threading.Thread | None = None

    # -- hosts --------------------------------------------------------------------------------

    def host(self, name: str = "a", *, start: bool = True, ready: bool = True, **options: Any) -> Host:
        """Make a gunicorn host (see :class:`Host`, :class:`Process`) and start it."""
        host = Host(name, **self._options(name, options))
        self.hosts.append(host)
        return host.start(ready=ready) if start else host

    def process(
        self, name: str, argv: Sequence[str], *, start: bool = True, ready: bool = True, **options: Any
    ) -> Process:
        """Make a host of any other program (``flask run``, waitress, uWSGI, a script) and start it."""
        process = Process(name, argv, **self._options(name, options))
        self.hosts.append(process)
        return process.start(ready=ready) if start else process

    def _options(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        config = dict(options.pop("config", None) or {})
        if self.store is not None:
            config.setdefault("SINGLEJOB_STORE", self.store)
        jobs = options.pop("jobs", None)
        env: dict[str, str] = dict(options.pop("env", None) or {})
        if jobs is not None:
            env["SINGLEJOB_TEST_JOBS"] = json.dumps(jobs)
        return {
            "directory": self.directory / name,
            "witness": self.witness,
            "config": config,
            "env": env,
            **options,
        }

    def stop(self) -> None:
        """Stop sampling and every host in good order; all of them are reaped even if one fails."""
        self.stop_sampling()
        trouble: list[AssertionError] = []
        for host in self.hosts:
            try:
                host.stop()
            except AssertionError as error:
                trouble.append(error)
        if trouble:
            raise trouble[0]

    def reap(self) -> None:
        """Kill whatever still runs."""
        self.stop_sampling()
        for host in self.hosts:
            host.kill_all()

    # -- looking ------------------------------------------------------------------------------

    def sample_owners(self, every: float = 0.03) -> None:
        """Begin to note who holds each host's lock, from the kernel, until :meth:`stop_sampling`."""

        def loop() -> None:
            while not self._sampling.wait(every):
                for host in list(self.hosts):
                    pids = set(host.owners())
                    if len(pids) > 1:  # not read in one moment: two are two only if both still are
                        pids &= set(host.owners())
                    self.samples.append(OwnerSample(time.monotonic(), host.name, tuple(sorted(pids))))

        self._sampling.clear()
        self._sampler = threading.Thread(target=loop, daemon=True)
        self._sampler.start()

    def stop_sampling(self) -> None:
        """End what :meth:`sample_owners` began."""
        self._sampling.set()
        if self._sampler is not None:
            self._sampler.join(20)
            self._sampler = None

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return what the witness was told so far."""
        return [e for e in read_events(self.witness) if event is None or e["event"] == event]

    def runs(self, job: str | None = None) -> list[WitnessedRun]:
        """Return the witnessed runs in the order of their starts."""
        return runs_of(self.events(), job)

    def wait_runs(self, job: str, count: int, deadline: float = 60.0) -> list[WitnessedRun]:
        """Wait until a job was run at least so many times in all."""
        wait_until(lambda: len(self.runs(job)) >= count, deadline, f"{count} runs of {job}", every=0.1)
        return self.runs(job)

    def judge(self, *expected: Expected, window: tuple[float, float], **options: Any) -> Report:
        """Check the witness, see :func:`tests.integration.checker.check`."""
        return check(self.events(), expected, window=window, samples=self.samples, **options)

    def logs(self) -> list[tuple[str, str]]:
        """Return the last lines of each host's log, by name."""
        return [(host.name, host.log_tail()) for host in self.hosts]


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def holds_lock(pid: int, path: Path) -> bool:
    """Tell from /proc whether a process itself took a lock on a file that it has open there."""
    names = {str(path), f"{path} (deleted)"}
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{entry}") not in names:
                continue
            info = Path(f"/proc/{pid}/fdinfo/{entry}").read_text()
            if any(int(found) == pid for found in re.findall(r"^lock:.*?WRITE\s+(\d+)", info, re.M)):
                return True
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return False


def listening_ports(pids: Sequence[int]) -> dict[int, set[int]]:
    """Return, by pid, the TCP ports on which a process has a listening socket open."""
    listening: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    listening[fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    ports: dict[int, set[int]] = {}
    for pid in pids:
        ports[pid] = set()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{entry}"))
                    if found and found[1] in listening:
                        ports[pid].add(listening[found[1]])
    return ports


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on (0: state, 1: parent, 2: group, 19: begun)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _environ(pid: int) -> dict[str, str]:
    """Return the environment with which the program of a process was started."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
