"""What a request may ask, and how a request that is refused is answered."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Limits:
    """The most that one request may send and take."""

    megabytes: float = 10.0
    rows: int = 10_000
    seconds: float = 30.0
    explained: int = 20  # rows of a request that asks what decided

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)

    def deadline(self) -> float:
        """When a request that begins now must be answered, by `time.monotonic`."""
        return time.monotonic() + self.seconds


class Reason(Enum):
    """Why a request is refused: its HTTP status and its code in the answer."""

    BAD_REQUEST = (400, "bad_request")
    NO_TOKEN = (401, "no_token")
    WRONG_HOST = (403, "wrong_host")
    NOT_FOUND = (404, "not_found")
    WRONG_METHOD = (405, "wrong_method")
    TOO_SLOW_TO_SEND = (408, "too_slow_to_send")
    TOO_LARGE = (413, "too_large")
    UNKNOWN_KIND = (415, "unknown_kind")
    BAD_INPUT = (422, "bad_input")
    TIMEOUT = (503, "timeout")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def code(self) -> str:
        return self.value[1]


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not a fault of the program
    """A request that is answered with a status and one sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def body(self) -> bytes:
        return error_body(self.reason.code, str(self))


def error_body(code: str, message: str) -> bytes:
    """The JSON of every answer that is no success."""
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def check_deadline(deadline: float, limits: Limits) -> None:
    """Raises `Refused` if the time of a request has passed."""
    if time.monotonic() > deadline:
        raise Refused(
            Reason.TIMEOUT,
            f"the request takes longer than {limits.seconds:g} seconds; send fewer rows, or start the server with a "
            "larger --seconds",
        )
