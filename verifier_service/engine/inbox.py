"""What other threads leave for the engine's, and where it sleeps until something comes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from verifier_service.drafting.port import DraftReply
from verifier_service.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Mail:
    """What was left since the last time, in the order in which it came."""

    requests: deque[Sequence] = field(default_factory=deque)
    cancelled: set[str] = field(default_factory=set)
    replies: deque[DraftReply] = field(default_factory=deque)


class Inbox:
    """Every method from any thread. stopping: nothing is taken any more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._mail = Mail()
        self._numbers = 0
        self.stopping = False

    @property
    def requests(self) -> int:
        """Requests that the engine has not seen yet."""
        return len(self._mail.requests)

    def request(self, sequence: Sequence, has_room: Callable[[], bool]) -> bool:
        """Leaves a new sequence and numbers it; False if it is not taken. has_room: whether one more may
        wait."""
        with self._changed:
            if self.stopping or not has_room():
                return False
            self._numbers += 1
            sequence.number = self._numbers
            sequence.trace.queued()
            self._mail.requests.append(sequence)
            self._changed.notify()
            return True

    def cancel(self, request_id: str) -> None:
        with self._changed:
            self._mail.cancelled.add(request_id)
            self._changed.notify()

    def reply(self, reply: DraftReply) -> None:
        """Takes a drafter's reply, and notes when it came: the engine may be in the middle of a step."""
        reply = replace(reply, arrived=time.monotonic())
        with self._changed:
            self._mail.replies.append(reply)
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self.stopping = True
            self._changed.notify()

    @property
    def replied(self) -> int:
        """Replies that were not taken yet."""
        return len(self._mail.replies)

    def empty(self) -> Mail:
        """Takes everything."""
        with self._changed:
            mail, self._mail = self._mail, Mail()
        return mail

    def wait(self, seconds: float | None, for_requests: bool) -> list[DraftReply] | None:
        """Sleeps until a reply comes, or for so many seconds, for ever if None; the replies. None if there is
        something else to see to: the end, a cancelled request, and with `for_requests` a new one."""
        with self._changed:
            if not (self._mail.replies or self._is_urgent(for_requests)):
                self._changed.wait(seconds)
            if self._is_urgent(for_requests):
                return None
            replies = list(self._mail.replies)
            self._mail.replies.clear()
            return replies

    def _is_urgent(self, for_requests: bool) -> bool:
        mail = self._mail
        return self.stopping or bool(mail.cancelled) or (for_requests and bool(mail.requests))
