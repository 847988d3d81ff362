"""Questions to the store from a web view: none waits for long, and a hanging store piles up no threads.

Owns the time limit and the sharing of one answer among requests that came while it was being found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..errors import StoreError

__all__ = ["SharedAsk", "ask_within"]

T = TypeVar("T")


class _Answer(Generic[T]):
    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self.done = threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    def find(self) -> None:
        try:
            self.value = self._ask()
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()

    def get(self, seconds: float) -> T:
        if not self.done.wait(seconds):
            raise StoreError(f"the store did not answer within {seconds:g} s")
        if self.error is not None:
            raise self.error
        value: Any = self.value
        found: T = value
        return found


def ask_within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what a call gives, if it gives it in time; it goes on by itself if not.

    :raises StoreError: when it does not.
    """
    answer = _Answer(ask)
    threading.Thread(target=answer.find, name="singlejob-ask", daemon=True).start()
    return answer.get(seconds)


class SharedAsk(Generic[T]):
    """A question that is asked once at a time: who comes while it is being answered gets that answer.

    :param seconds: how long each caller waits.
    """

    def __init__(self, ask: Callable[[], T], *, seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = threading.Lock()
        self._going: _Answer[T] | None = None

    def __call__(self) -> T:
        """Return the answer.

        :raises StoreError: when there is none in time.
        """
        with self._lock:
            answer = self._going
            if answer is None or answer.done.is_set():
                answer = self._going = _Answer(self._ask)
                threading.Thread(target=answer.find, name="singlejob-ask", daemon=True).start()
        return answer.get(self._seconds)
