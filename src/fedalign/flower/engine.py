"""The engine for parties on other machines: training over the network, scores as counts."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.flower.party_state import digest_of
from fedalign.flower.roster import Roster, absent
from fedalign.flower.transport import Transport
from fedalign.ingest.offer import Offer
from fedalign.learning.rounds import Plan, Reply, short
from fedalign.types import Arrays, Party, Server

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

PARTS = ("test", "validation")  # the rows a party counts hits and misses on
COUNTS = 32  # bytes per class


class NewClassesError(Exception):
    """A party with new label names has connected, and the list of classes must grow."""

    def __init__(self, offer: Offer, names: Sequence[str]) -> None:
        super().__init__(offer.party)
        self.offer, self.names = offer, list(names)


class DeployedEngine:
    """Parties keep their rows and their state; replies are checked before they are used."""

    on_visit: Callable[[int], None]

    def __init__(
        self, plan: Plan, transport: Transport, roster: Roster, extend: bool, evaluate_every: int, out: Path
    ) -> None:
        self.plan, self.transport, self.roster, self.out = plan, transport, roster, out
        # sums are of the classes that were agreed on before them
        self.settled = plan.algorithm.fixed_features or plan.config.encoder.distilled
        self.extend = extend and not self.settled
        self.evaluate_every = evaluate_every
        self.on_visit = lambda client: None
        self.number = 0
        self._asked: tuple[Arrays, dict[str, Tensor]] | None = None  # the last weights scored, and their counts
        self._decided: tuple[Arrays, dict[str, Tensor]] | None = None  # the same at the method's own thresholds
        self._sent: dict[str, tuple[Arrays, RecordDict]] = {}  # arrays that all parties get, as records
        self._digest: tuple[Arrays, str] = ({}, "")
        self.held: tuple[Arrays, set[int]] = ({}, set())  # the weights that these clients have stored
        self.scored_by = 0  # parties whose counts are in the last scores
        self.run = roster.run
        self.noisy = plan.config.privacy.on  # counts come with noise
        self.silent = plan.config.privacy.secure_sums and not self.noisy  # counts would be those of one party
        self.counted: dict[int, int] = {}  # client: the last round in which its update was accepted

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        self.number = round_number
        self.forget_others(server.weights)
        self.transport.greet()
        self.admit_new_parties()
        parties = self.plan.federation.parties
        wanted, nonces = {}, {}
        for client in chosen:
            node = self.transport.places.get(parties[client].name)
            if node is not None:
                nonces[client] = secrets.token_hex(16)
                wanted[node] = ("train", self.task_message(server, client, nonces[client]))
        clients = {self.transport.places.get(parties[client].name, -1): client for client in chosen}

        def read(node: int, reply: Message) -> Reply:
            client = clients[node]
            self.on_visit(client)
            return self.read(client, reply, server, nonces[client])

        replies = self.transport.exchange(wanted, self.transport.timeout, read)
        again = {}
        for client in chosen:  # a party that no longer has the weights gets them
            node = self.transport.places.get(parties[client].name, -1)
            if isinstance(replies.get(node), str) and self.holds(client, server) and node in wanted:
                self.held[1].discard(client)
                nonces[client] = secrets.token_hex(16)
                again[node] = ("train", self.task_message(server, client, nonces[client]))
        replies |= self.transport.exchange(again, self.transport.timeout, read)
        self._sent.clear()
        found = []
        for client in chosen:
            reply = replies.get(self.transport.places.get(parties[client].name, -1), "it is not connected")
            if isinstance(reply, str):
                self.on_visit(client)
                reply = Reply(client, None, reply)
            found.append(reply)
        return found

    def forget_others(self, weights: Arrays) -> None:
        """Lets go of the weights of earlier rounds."""
        asked = (self._asked, self._decided)
        self._asked, self._decided = (one if one is not None and one[0] is weights else None for one in asked)
        self._digest = self._digest if self._digest[0] is weights else ({}, "")
        self.held = self.held if self.held[0] is weights else ({}, set())

    def commit(self, round_number: int, clients: Sequence[int]) -> None:
        self.counted |= dict.fromkeys(clients, round_number)

    def admit_new_parties(self) -> None:
        """Adds parties that connected later; with known label names they take part from the next round."""
        known = {party.name for party in self.plan.federation.parties}
        for party, node in list(self.transport.places.items()):
            if party in known:
                continue
            offer = self.transport.offers[node]
            new = self.roster.unknown(offer)
            objection = self.roster.objection(offer)
            if self.plan.config.privacy.secure_sums:
                objection = "masks are agreed among the parties of the start; start a new run with it"
            if objection:
                self.transport.refuse(node, f"{party!a} may not join: {objection}")
            elif not new:
                self.roster.offers.append(offer)
                self.plan.federation.parties.append(absent(offer, self.roster.agreed))  # type: ignore[attr-defined]
                self.roster.keep(self.out)
                self.transport.log(f"{party!a} joins")
            elif self.extend:
                raise NewClassesError(offer, new)
            else:
                words = ", ".join(map(ascii, new))
                fix = "" if self.settled else ", or set new_classes = 'extend'"
                self.transport.refuse(node, f"{party!a} brings new classes ({words}); start a new run{fix}")

    def holds(self, client: int, server: Server) -> bool:
        """Whether a party has stored these weights when it scored them."""
        return server.weights is self.held[0] and client in self.held[1]

    def task_message(self, server: Server, client: int, nonce: str, keep: bool = False) -> RecordDict:
        from flwr.app import RecordDict as Records

        content = Records()
        task: dict[str, str | int | float] = {
            "run": self.run,
            "round": self.number,
            "client": client,
            "clients": server.num_clients,
            "counted": self.counted.get(client, 0),
            "nonce": nonce,
            "agreed": self.roster.agreed.model_dump_json(),
        }
        if self.plan.config.privacy.secure_sums:  # whose masks are in the sum
            task["parties"] = json.dumps([party.name for party in self.plan.federation.parties])
        if keep:
            task["keep"] = self.digest(server.weights)
        messages.put_text(content, "task", task)
        if self.holds(client, server):
            messages.put_text(content, "held", {"sha256": self.digest(server.weights)})
        else:
            self.put(content, "weights", server.weights)
        self.put(content, "extra", server.extra)
        return content

    def put(self, content: RecordDict, name: str, arrays: Arrays) -> None:
        """Adds arrays that all parties get; the messages share them."""
        from flwr.app import RecordDict as Records

        if name not in self._sent or self._sent[name][0] is not arrays:
            self._sent[name] = (arrays, Records())
            messages.put(self._sent[name][1], name, arrays)
        messages.put_again(content, name, self._sent[name][1])

    def digest(self, weights: Arrays) -> str:
        if self._digest[0] is not weights:
            self._digest = (weights, digest_of(weights))
        return self._digest[1]

    def read(self, client: int, reply: Message, server: Server, nonce: str) -> Reply:
        """An update from a reply, or why there is none. A large one waits on disk for those of the other parties."""
        party = self.plan.federation.parties[client]
        content = reply.content
        largest = self.plan.algorithm.reply_spec(server, self.number).size + len(party.train.classes)
        messages.keep_receipt(self.out, "in", "train", party.name, content, largest)
        try:
            self.check_echo(content, party, nonce)
            update = messages.get_update(content, largest, messages.views)
            kept = messages.count_of(content, "kept") if "kept" in content else 0
            weights, extra = (messages.kept(arrays, self.out) for arrays in (update.weights, update.extra))
            return Reply(client, replace(update, weights=weights, extra=extra), kept=kept)
        except Exception as error:  # a message of unknown content: whatever it does to a reader, its party is left out
            return Reply(client, None, str(error))

    def check_echo(self, content: RecordDict, party: Party, nonce: str) -> None:
        """Refuses a reply to another message."""
        echo = content["echo"] if "echo" in content else {}  # noqa: SIM401  (a RecordDict has no get)
        expected = {"run": self.run, "round": self.number, "nonce": nonce, "party": party.name}
        for key, value in expected.items():
            if echo.get(key) != value:
                raise UserError(f"its reply is for another {key}")

    def counts(self, found: Arrays, party: Party, grid: Mapping[str, int]) -> Arrays:
        """Counts (C, 4) of the classes the party annotates, and of no other; (T, C, 4) of a part asked about with a
        grid of T thresholds."""
        for name, counts in found.items():
            shape = ((grid[name],) if name in grid else ()) + (len(party.train.classes), 4)
            if name not in PARTS or counts.shape != shape or counts.dtype != torch.int64:
                raise UserError(f"its counts {name[:80]!a} have shape {tuple(counts.shape)} and type {counts.dtype}")
            least = -messages.MAX_COUNT if self.noisy else 0
            if bool((counts < least).any()) or bool((counts > messages.MAX_COUNT).any()):
                raise UserError(f"its counts {name!a} are not counts")
        return {name: counts * party.train.classes.view(-1, 1) for name, counts in found.items()}

    def ask(self, weights: Arrays, thresholds: Arrays) -> dict[str, Tensor]:
        """Counts on all parties' own rows, summed; a party that does not answer is left out and named. Thresholds are
        one per class (C,), or a grid (T, 1) or (T, C)."""
        parties = self.plan.federation.parties
        server = Server(weights, len(parties), ())
        wanted, asked = {}, {}
        # the weights that are scored now are those that the next round starts from
        keep = self.transport.packed and self.number < self.plan.config.rounds
        holders: set[int] = set()
        self.held = ({}, holders)
        for client, party in enumerate(parties):
            node = self.transport.places.get(party.name)
            if node is not None:
                asked[node] = (party, secrets.token_hex(16))
                content = self.task_message(server, client, asked[node][1], keep)
                messages.put(content, "thresholds", thresholds)
                wanted[node] = ("query.score", content)
        grid = {name: len(values) for name, values in thresholds.items() if values.dim() == 2}
        total: dict[str, Tensor] = {}
        self.scored_by = 0
        for node, reply in self.transport.send(wanted, self.transport.timeout).items():
            party, nonce = asked[node]
            found = reply if isinstance(reply, str) else self.read_counts(reply.content, party, nonce, grid)
            if isinstance(found, str):
                self.transport.log(f"{party.name!a} sent no scores: {short(found)}")
                continue
            self.scored_by += 1
            holders.add(parties.index(party))
            for name, counts in found.items():
                total[name] = total[name] + counts if name in total else counts
        self.held = (weights if keep else {}, holders)
        self._sent.clear()
        return {name: counts.clamp(min=0) for name, counts in total.items()}  # noise may be below 0

    def read_counts(self, content: RecordDict, party: Party, nonce: str, grid: Mapping[str, int]) -> Arrays | str:
        """All counts of a reply, or why there are none."""
        largest = sum(grid.get(name, 1) for name in PARTS) * len(party.train.classes) * COUNTS
        messages.keep_receipt(self.out, "in", "score", party.name, content, largest)
        try:
            self.check_echo(content, party, nonce)
            return self.counts(messages.get(content, "counts", largest), party, grid)
        except Exception as error:  # as above
            return str(error)

    def score(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        algorithm = self.plan.algorithm
        if self.silent:
            return None
        if thresholds is not None and algorithm.own_thresholds:
            return self.both(weights, thresholds).get("test")
        if thresholds is not None:
            return self.ask(weights, {"test": thresholds}).get("test")
        # a method that ends by itself is scored when it is done, in whichever round that is
        rounds = self.plan.config.rounds
        last = max(rounds, algorithm.planned_rounds(self.plan.model, rounds))
        due = self.number % self.evaluate_every == 0 or self.number in (rounds, last)
        due = due or algorithm.fixed_features
        return self.plain(weights).get("test") if due else None

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        if self.silent:
            return None
        if grid is None:
            return self.plain(weights).get("validation")
        if self._decided is not None and self._decided[0] is weights and grid.dim() == 2:
            counts = self._decided[1].get("validation")  # at the method's own thresholds, asked for with the test rows
            return None if counts is None else counts[None]
        return self.ask(weights, {"validation": grid if grid.dim() == 2 else grid.view(-1, 1)}).get("validation")

    def both(self, weights: Arrays, thresholds: Tensor) -> dict[str, Tensor]:
        """Counts at the method's own thresholds (C,). Those at 0.5 are asked for with the same message."""
        pair = torch.stack([thresholds, torch.full_like(thresholds, 0.5)])  # (2, C)
        found = self.ask(weights, dict.fromkeys(PARTS, pair))
        self._asked = (weights, {name: counts[1] for name, counts in found.items()})
        self._decided = (weights, {name: counts[0] for name, counts in found.items()})
        return self._decided[1]

    def plain(self, weights: Arrays) -> dict[str, Tensor]:
        """Counts on test and validation rows, asked for at once, since each message starts a process at the party."""
        if self._asked is None or self._asked[0] is not weights:
            self._asked = (weights, self.ask(weights, {}))
        return self._asked[1]
