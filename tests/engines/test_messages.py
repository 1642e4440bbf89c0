"""The newer methods over Flower's messages, serialised both ways, bit for bit; test_parity.py runs real simulations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from fedalign.engines import flower
from fedalign.engines.local import Local
from fedalign.learning.rounds import rounds
from helpers.federations import ON_FEATURES, for_method, play, same, tasks_of

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedalign[flower]'")
if TYPE_CHECKING:
    from flwr.app import Message


class SimulatedNodes:
    """Four nodes of a simulation that answer at once, in this process."""

    def __init__(self) -> None:
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return [1, 2, 3, 4]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        from flwr.app import Message

        from helpers.loopback_grid import metadata, over_the_wire

        numbers = []
        for message in messages:
            number, node = f"message-{len(self.replies)}", message.metadata.dst_node_id
            content = over_the_wire(flower.simulated_visit(over_the_wire(message.content)))
            self.replies[number] = Message(content, metadata=metadata(f"{number}-reply", node, 1, number, "train"))
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self.replies[number] for number in numbers]


@pytest.mark.flower
@pytest.mark.parametrize(("name", "task"), [(name, tasks_of(name)[-1]) for name in ON_FEATURES])
def test_a_run_over_messages_ends_with_the_same_bits(name: str, task: str) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower sets them in a ServerApp
    prepared = for_method(name, task)
    here = play(prepared)
    with Local(workers=1).open(prepared) as local:
        engine = flower.FlowerEngine(prepared, SimulatedNodes(), local, timeout=300)  # type: ignore[arg-type]
        there = list(rounds(prepared, engine, prepared.start()))
    assert same(here[-1].server.weights, there[-1].server.weights)
    assert same(here[-1].server.extra, there[-1].server.extra)
    assert same(here[-1].server.state, there[-1].server.state)
    assert [now.record for now in here] == [now.record for now in there]
