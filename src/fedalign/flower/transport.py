"""Sends messages to nodes and receives their replies. Every wait has a limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.flower.packing import pack, unpack
from fedalign.ingest.agree import check_offer
from fedalign.ingest.offer import Offer
from fedalign.labels import names as label_names

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

# seconds after which a refused node is asked again, because its party may have fixed the cause; doubled each time,
# because all parties wait for its reply
RETRY = 30.0
RESENDS = 3  # times that a message is sent again in one exchange
# seconds between polls for replies or nodes; growing while polls are answered at once, because each costs both sides
PAUSE, LONGEST = 0.05, 0.5
Log = Callable[[str], None]
Found = TypeVar("Found")


class NoReply(str):
    """A failure of a node that sent nothing in time. It is not asked again before it has reconnected."""

    __slots__ = ()


class Transport:
    """Sends messages to parties; knows at which node each is reached."""

    def __init__(self, grid: Grid, parties: int, wait: float, timeout: float, log: Log) -> None:
        self.grid, self.parties, self.wait, self.timeout, self.log = grid, parties, wait, timeout, log
        self.names: dict[int, str] = {}  # node -> the name that its key is registered with, if any
        self.offers: dict[int, Offer] = {}  # node -> its offer
        self.refused: dict[int, str] = {}  # node -> reason why it does not take part
        self.retry_at: dict[int, float] = {}  # node -> time at which it is asked again
        self.retry_after: dict[int, float] = {}  # node -> seconds until then
        self.logged: dict[int, str] = {}  # node -> reason that was logged last
        self.packed = False  # every message is sent as one record
        self.trial = False  # offers of a preset's clients hold no statistics
        self.places: dict[str, int] = {}  # party -> node
        self.folder: Path | None = None  # of receipts: the run's folder, once it exists
        self.pending: list[tuple[str, str, str, RecordDict]] = []  # receipts to be written there

    def gather(self, names: Collection[str] = ()) -> list[Offer]:
        """Returns the parties' offers once enough parties are connected. A resumed run waits for all `names`."""
        deadline = time.monotonic() + self.wait
        while True:
            self.greet()
            missing = sorted(set(names) - self.places.keys())
            if not missing and (names or len(self.places) >= self.parties):
                return [self.offers[node] for node in self.places.values()]
            if time.monotonic() > deadline:
                reasons = "; ".join(sorted(set(self.refused.values()))) or "no other node connected"
                if missing:
                    raise UserError(
                        f"parties of this run did not connect within {self.wait:.0f} s: "
                        f"{', '.join(map(ascii, missing))} ({reasons}); start them and resume again"
                    )
                raise UserError(
                    f"{len(self.places)} of {self.parties} parties connected within {self.wait:.0f} s ({reasons}); "
                    "start the others, or lower parties"
                )
            time.sleep(PAUSE)

    def greet(self) -> None:
        """Asks new nodes, and nodes refused a while ago, for their offers; finds parties that moved to another node."""
        from flwr.app import RecordDict as Records

        self.names = {node.node_id: node.name for node in self.grid.get_nodes()}
        now = self.names.keys()
        for party, node in list(self.places.items()):
            if node not in now:
                del self.places[party]
        for node in list(self.refused):
            if node not in now or time.monotonic() >= self.retry_at[node]:
                del self.refused[node]
        unknown = sorted(now - self.offers.keys() - self.refused.keys())
        replies = self.send({node: ("query.offer", Records()) for node in unknown}, self.wait)
        for node in unknown:
            self.receive_offer(node, replies[node])
        for node in sorted(now & self.offers.keys()):
            party = self.offers[node].party
            if self.places.setdefault(party, node) != node:
                self.refuse(node, f"another node is connected as {party!a}; give each party its own name")

    def receive_offer(self, node: int, reply: Message | str) -> None:
        """Stores a node's offer, or refuses the node with a reason."""
        if isinstance(reply, str):
            self.refuse(node, reply)
            return
        try:
            offer = Offer.model_validate_json(messages.text_of(reply.content, "offer", "offer"))
            if len(reply.content) > 1 or len(reply.content["offer"]) > 1:
                raise UserError("its reply holds more than an offer; both sides must run the same version")
            for name in (offer.party, *offer.classes):
                label_names.allowed(name)
            if not self.trial:
                check_offer(offer)
                self.check_name(node, offer.party)
            self.offers[node] = offer
            self.note("in", "offer", offer.party, reply.content)
        except ValidationError:
            self.refuse(node, "its offer cannot be read; both sides must run the same version")
        except UserError as error:
            self.refuse(node, str(error))

    def check_name(self, node: int, party: str) -> None:
        """Refuses a node whose key is registered with another party's name."""
        registered = self.names.get(node)
        if registered and registered != party:
            raise UserError(
                f"its key is registered as {registered!a} and it calls itself {party!a}; start it with "
                "party= as in its registration, or register the key again with --name"
            )

    def note(self, direction: str, kind: str, other: str, content: RecordDict) -> None:
        """Adds to the server's receipts, which are written once the run has a folder."""
        self.pending.append((direction, kind, other, content))
        if self.folder is not None:
            self.write_receipts(self.folder)

    def write_receipts(self, folder: Path) -> None:
        self.folder = folder
        for receipt in self.pending:
            messages.keep_receipt(folder, *receipt)
        self.pending.clear()

    def refuse(self, node: int, reason: str) -> None:
        """Excludes a node for now."""
        self.offers.pop(node, None)
        self.places = {party: place for party, place in self.places.items() if place != node}
        self.refused[node] = reason
        if self.logged.get(node) != reason:
            self.log(f"node {node} does not take part: {reason}")
            self.logged[node], self.retry_after[node] = reason, RETRY / 2
        self.retry_after[node] *= 2
        silent = isinstance(reason, NoReply)
        self.retry_at[node] = math.inf if silent else time.monotonic() + self.retry_after[node]

    def send(self, wanted: Mapping[int, tuple[str, RecordDict]], timeout: float) -> dict[int, Message | str]:
        """Returns the reply of each node, or a text with the reason why there is none."""
        return self.exchange(wanted, timeout, lambda _, message: message)

    def exchange(
        self, wanted: Mapping[int, tuple[str, RecordDict]], timeout: float, read: Callable[[int, Message], Found]
    ) -> dict[int, Found | str]:
        """Returns what `read` makes of each node's reply as it arrives, so that no message is held, or a text with the
        reason why there is none."""
        found: dict[int, Found | str] = {}
        sent, left = self.push(wanted, timeout), dict.fromkeys(wanted, RESENDS)
        deadline, pause = time.monotonic() + timeout, PAUSE
        while len(found) < len(wanted) and time.monotonic() < deadline:
            for node in wanted.keys() - found.keys() - set(sent.values()):
                found[node] = "the SuperLink does not know it any more"
            due: set[int] = set()
            asked = time.monotonic()
            for message in released(self.grid.pull_messages([*sent])):
                # Flower answers for a node that died, so a reply is matched by the message it replies to
                sender = sent.pop(message.metadata.reply_to_message_id, None)
                if sender is not None and is_lost(message) and left[sender]:
                    left[sender] -= 1
                    due.add(sender)
                elif sender is not None:
                    reply = received(message)
                    found[sender] = reply if isinstance(reply, str) else read(sender, reply)
                    del reply
                del message
            for node in sorted(due):
                name = self.names.get(node) or self.name_of(node)
                self.log(f"{name!a} lost a message, as after a restart; it is sent again")
            sent |= self.push({node: wanted[node] for node in wanted if node in due}, timeout)
            if len(found) < len(wanted):
                held = time.monotonic() - asked > LONGEST  # the SuperLink of a deployment waits for a message
                pause = PAUSE if held else min(1.5 * pause, LONGEST)
                time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        return {node: found.get(node, NoReply(f"no reply within {timeout:.0f} s")) for node in wanted}

    def push(self, wanted: Mapping[int, tuple[str, RecordDict]], timeout: float) -> dict[str, int]:
        """Sends messages; returns the node of each by the message's number."""
        from flwr.app import Message as FlowerMessage

        if not wanted:
            return {}
        outgoing = [
            FlowerMessage(
                pack(content) if self.packed else content, dst_node_id=node, message_type=kind, ttl=timeout + 60
            )
            for node, (kind, content) in wanted.items()
        ]
        for node, (kind, content) in wanted.items():
            self.note("out", kind.removeprefix("query."), self.name_of(node), content)
        numbers = zip(self.grid.push_messages(outgoing), wanted, strict=True)
        return {number: node for number, node in numbers if number}

    def name_of(self, node: int) -> str:
        return next((party for party, place in self.places.items() if place == node), f"node {node}")


def released(messages: Iterable[Message]) -> Iterator[Message]:
    """Yields messages without holding on to those that were read."""
    if not isinstance(messages, list):
        yield from messages
        return
    while messages:
        yield messages.pop()


def is_lost(message: Message) -> bool:
    """Whether this is Flower's answer for a message that its node will not answer, because it was restarted."""
    from flwr.common.constant import ErrorCode

    return message.has_error() and message.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def received(message: Message) -> Message | str:
    """Returns a reply with its records, or why there is none."""
    if message.has_error():
        return failure_of(message)
    try:
        content = unpack(message.content)
        if content is not message.content:
            message.content = content
    except UserError as error:
        return str(error)
    return failure_of(message) or message


def failure_of(message: Message) -> str:
    """Returns why a party failed, as printable ASCII; empty if it did not fail."""
    if message.has_error():
        text = str(message.error.reason or "no reason given")
    elif "failure" in message.content:
        text = str(message.content["failure"].get("reason", "it failed"))
    else:
        return ""
    return ascii(" ".join(text.split())[:300])[1:-1]
