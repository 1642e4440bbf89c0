"""Messages to nodes and back, never waiting without a limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.ingest.agree import check_offer
from fedalign.ingest.offer import Offer
from fedalign.labels import names as label_names

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

AGAIN = 30.0  # seconds after which a node that was refused is asked again, since its people may have mended it; then
# twice as many each time, for everybody waits for its answer
NO_REPLY = "no reply within"
PAUSE, LONGEST = 0.5, 3.0  # seconds between looks for replies or nodes: more and more, for each look costs both sides
Log = Callable[[str], None]


class Transport:
    """Knows which party is reached at which node."""

    def __init__(self, grid: Grid, parties: int, wait: float, timeout: float, log: Log) -> None:
        self.grid, self.parties, self.wait, self.timeout, self.log = grid, parties, wait, timeout, log
        self.names: dict[int, str] = {}  # node -> the name its key was registered under, if any
        self.offers: dict[int, Offer] = {}  # node -> its offer
        self.refused: dict[int, str] = {}  # node -> why it does not take part
        self.until: dict[int, float] = {}  # node -> when it is asked again
        self.pauses: dict[int, float] = {}  # node -> seconds until then
        self.said: dict[int, str] = {}  # node -> why it did not take part when that was last logged
        self.trial = False  # offers of a preset's clients hold no statistics
        self.places: dict[str, int] = {}  # party -> node
        self.folder: Path | None = None  # of receipts; the run's, once there is one
        self.early: list[tuple[str, str, str, RecordDict]] = []  # what is to be noted there

    def gather(self, names: Collection[str] = ()) -> list[Offer]:
        """Offers of the parties, once enough of them are there; of a run that is resumed, once all its parties are."""
        deadline = time.monotonic() + self.wait
        while True:
            self.greet()
            missing = sorted(set(names) - self.places.keys())
            if not missing and (names or len(self.places) >= self.parties):
                return [self.offers[node] for node in self.places.values()]
            if time.monotonic() > deadline:
                reasons = "; ".join(sorted(set(self.refused.values()))) or "nobody else connected"
                if missing:
                    raise UserError(
                        f"the run was begun with parties that did not come within {self.wait:.0f} s: "
                        f"{', '.join(map(ascii, missing))} ({reasons}); start them and resume again"
                    )
                raise UserError(
                    f"{len(self.places)} of {self.parties} parties came within {self.wait:.0f} s ({reasons}); start "
                    "the others, or lower parties"
                )
            time.sleep(PAUSE)

    def greet(self) -> None:
        """Asks nodes not heard of yet, or refused a while ago; finds parties that are back at another node."""
        from flwr.app import RecordDict as Records

        self.names = {node.node_id: node.name for node in self.grid.get_nodes()}
        now = self.names.keys()
        for party, node in list(self.places.items()):
            if node not in now:
                del self.places[party]
        for node in list(self.refused):
            if node not in now or time.monotonic() >= self.until[node]:
                del self.refused[node]
        unknown = sorted(now - self.offers.keys() - self.refused.keys())
        replies = self.send({node: ("query.offer", Records()) for node in unknown}, self.wait)
        for node in unknown:
            self.listen(node, replies[node])
        for node in sorted(now & self.offers.keys()):
            party = self.offers[node].party
            if self.places.setdefault(party, node) != node:
                self.refuse(node, f"another node is connected as {party!a}; give each party its own name")

    def listen(self, node: int, reply: Message | str) -> None:
        """Takes a node's offer, or says why not."""
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
            self.refuse(node, "its offer is not one; both sides must run the same version")
        except UserError as error:
            self.refuse(node, str(error))

    def check_name(self, node: int, party: str) -> None:
        """A key that the server's people registered for one party does not speak for another."""
        registered = self.names.get(node)
        if registered and registered != party:
            raise UserError(
                f"its key is registered as {registered!a} and it calls itself {party!a}; start it with "
                "party= as in its registration, or register the key anew with --name"
            )

    def note(self, direction: str, kind: str, other: str, content: RecordDict) -> None:
        """Adds to the server's receipt, as soon as it has a folder."""
        self.early.append((direction, kind, other, content))
        if self.folder is not None:
            self.keep_notes(self.folder)

    def keep_notes(self, folder: Path) -> None:
        self.folder = folder
        for line in self.early:
            messages.keep_receipt(folder, *line)
        self.early.clear()

    def refuse(self, node: int, reason: str) -> None:
        """Leaves a node out for now. One that is silent is not asked again before it has gone and come back."""
        self.offers.pop(node, None)
        self.places = {party: place for party, place in self.places.items() if place != node}
        self.refused[node] = reason
        if self.said.get(node) != reason:
            self.log(f"node {node} does not take part: {reason}")
            self.said[node], self.pauses[node] = reason, AGAIN / 2
        self.pauses[node] *= 2
        self.until[node] = math.inf if reason.startswith(NO_REPLY) else time.monotonic() + self.pauses[node]

    def send(self, wanted: Mapping[int, tuple[str, RecordDict]], timeout: float) -> dict[int, Message | str]:
        """Replies by node; a text in place of one says why there is none."""
        from flwr.app import Message as FlowerMessage

        if not wanted:
            return {}
        letters = [
            FlowerMessage(content, dst_node_id=node, message_type=kind, ttl=timeout + 60)
            for node, (kind, content) in wanted.items()
        ]
        names = {node: party for party, node in self.places.items()}
        for place, (kind, content) in wanted.items():
            self.note("out", kind.removeprefix("query."), names.get(place, f"node {place}"), content)
        sent = dict(zip(self.grid.push_messages(letters), wanted, strict=True))
        found: dict[int, Message | str] = {}
        deadline, pause = time.monotonic() + timeout, PAUSE
        while len(found) < len(sent) and time.monotonic() < deadline:
            waiting = [number for number, node in sent.items() if node not in found]
            for message in self.grid.pull_messages(waiting):
                # the reply for a node that died has another sender, so it is known by what it replies to
                node = sent.get(message.metadata.reply_to_message_id)
                if node is not None and node not in found:
                    found[node] = reason_of(message) or message
            if len(found) < len(sent):
                time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
                pause = min(1.5 * pause, LONGEST)
        return {node: found.get(node, f"{NO_REPLY} {timeout:.0f} s") for node in wanted}


def reason_of(message: Message) -> str:
    """Why a party failed, as text that cannot do anything; empty if it did not."""
    if message.has_error():
        text = str(message.error.reason or "no reason given")
    elif "failure" in message.content:
        text = str(message.content["failure"].get("reason", "it failed"))
    else:
        return ""
    return ascii(" ".join(text.split())[:300])[1:-1]
