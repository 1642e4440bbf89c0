"""The engine on Flower's simulation: the same local training, carried by Flower's messages.

A message carries the run's configuration as text, the server's arrays and the client's state; the reply carries the
update and the new state. The simulation runs Flower's Ray backend from this process.
"""

from __future__ import annotations

import os
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedalign import config as configs
from fedalign.engines import local
from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.flower.installed import QUIET, require_flower
from fedalign.learning.client_state import ClientStates
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.rounds import Plan, Reply
from fedalign.runs import experiment
from fedalign.system.cores import cores
from fedalign.types import Arrays, Server, size_of

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

# Ray's errors for a lost process; of a node that died, it first says that its actor is unavailable
DEAD = ("ActorDiedError", "ActorUnavailableError", "RayActorError", "NodeDiedError", "WorkerCrashedError")
LOST = "a worker process of the Ray cluster died, or its node; start it again and resume the run"
LOOK = 2.0  # seconds between two looks at the nodes of the cluster


@dataclass(frozen=True)
class Flower:
    """timeout: seconds that a round may take. cpus: cores of a simulated client."""

    timeout: Annotated[float, Field(gt=0)] = 3600.0
    cpus: Annotated[int, Field(ge=1)] = 1
    memory_mb: Annotated[int, Field(ge=1)] = 1024

    @contextmanager
    def open(self, plan: Plan, states: ClientStates | None = None) -> Iterator[FlowerEngine]:
        """Starts a simulation with one virtual node per client, on a Ray cluster if RAY_ADDRESS names one."""
        os.environ.update(QUIET)
        require_flower()
        with ExitStack() as stack:
            here = stack.enter_context(local.Local(memory_mb=self.memory_mb).open(plan, states))
            grid = stack.enter_context(simulation(len(plan.federation.parties), self.cpus))
            yield FlowerEngine(plan, grid, here, self.timeout)


@contextmanager
def simulation(nodes: int, cpus: int) -> Iterator[Grid]:
    """Flower's Ray simulation in a thread; yields the grid that its ServerApp is given."""
    import logging

    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what goes wrong at a client is in its reply
    path = os.environ.get("PYTHONPATH")  # Flower writes its own for Ray's workers and leaves it
    ready, done = threading.Event(), threading.Event()
    handed: list[Grid] = []
    failures: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        handed.append(grid)
        ready.set()
        done.wait()

    def run() -> None:
        try:
            init: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
            if "RAY_ADDRESS" not in os.environ:
                init["num_cpus"] = cores()
            run_simulation(
                server,
                client_app(),
                nodes,
                backend_config={
                    "init_args": init,
                    "client_resources": {"num_cpus": cpus, "num_gpus": 0.0},
                },
            )
        except BaseException as error:  # whatever it is, the waiting thread must know
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="flower-simulation", daemon=True)
    thread.start()
    ready.wait()
    if not handed:
        raise UserError(f"Flower's simulation did not start: {failures[0] if failures else 'no reason given'}")
    try:
        yield handed[0]
    finally:
        done.set()
        thread.join(timeout=10)
        if thread.is_alive():  # it waits for a client whose node is gone, which would keep this process from ending
            import ray

            ray.shutdown()
            thread.join(timeout=50)
        if path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = path


def alive_nodes() -> set[str]:
    """The nodes that Ray takes for alive; none before it has started."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]} if ray.is_initialized() else set()


class FlowerEngine:
    """Trains over a grid; scores here, where a simulation has all rows."""

    def __init__(self, plan: Plan, grid: Grid, local_engine: local.LocalEngine, timeout: float) -> None:
        self.plan, self.grid, self.local, self.timeout = plan, grid, local_engine, timeout
        self.text = configs.to_toml(plan.config)
        self.mark = experiment.data_fingerprint(plan.federation)
        self.on_visit = local_engine.on_visit
        self.nodes: list[int] = []
        self.cluster: set[str] = set()  # Ray's nodes when it had placed its workers

    def train(self, server: Server, round_number: int, chosen: Sequence[int]) -> list[Reply]:
        from flwr.app import ConfigRecord, Message, RecordDict

        nodes = self._nodes()
        self.local.pending.clear()
        outgoing = []
        for client in chosen:
            task = {"round": round_number, "client": client, "config": self.text, "data": self.mark}
            content = RecordDict({"task": ConfigRecord(task)})
            messages.put(content, "weights", server.weights)
            messages.put(content, "extra", server.extra)
            messages.put(content, "state", self.local.states.get(client))
            outgoing.append(Message(content, dst_node_id=nodes[client], message_type="train"))
        sent = dict(zip(self.grid.push_messages(outgoing), chosen, strict=True))
        return self._collect(sent, chosen)

    def _nodes(self) -> list[int]:
        """Virtual nodes in a fixed order; client m is node m."""
        wanted = len(self.plan.federation.parties)
        deadline = time.monotonic() + self.timeout
        while len(self.nodes) < wanted:
            self.nodes = sorted(self.grid.get_node_ids())
            if time.monotonic() > deadline:
                raise UserError(f"only {len(self.nodes)} of {wanted} virtual nodes came up; raise engine.timeout")
            time.sleep(0.01)
        return self.nodes

    def _collect(self, sent: Mapping[str, int], chosen: Sequence[int]) -> list[Reply]:
        found: dict[int, Reply] = {}
        waiting = set(sent)
        self.cluster = self.cluster or alive_nodes()
        looked = time.monotonic()
        deadline = looked + self.timeout
        while waiting and time.monotonic() < deadline:
            if time.monotonic() > looked + LOOK:
                looked = time.monotonic()
                self._look_at_cluster()
            for message in self.grid.pull_messages(waiting):
                number = message.metadata.reply_to_message_id
                waiting.discard(number)
                client = sent[number]
                found[client] = self._reply(client, message)
                self.on_visit(client)
            if waiting:
                time.sleep(0.01)
        return [found.get(client, Reply(client, None, "no reply in time")) for client in chosen]

    def _look_at_cluster(self) -> None:
        """Raises a UserError if a node is gone. Ray takes a while to notice that a node died; a worker that was placed
        there in between never starts, and its clients would not reply."""
        if self.cluster - alive_nodes():
            raise UserError(LOST)

    def _reply(self, client: int, message: Message) -> Reply:
        if message.has_error():
            reason = message.error.reason
            if any(word in reason for word in DEAD):
                raise UserError(LOST)
            return Reply(client, None, f"failed: {reason}")
        content = message.content
        if "stopped" in content:
            raise UserError(str(content["stopped"]["reason"]))
        state = messages.get(content, "state")
        self.local.pending[client] = state
        return Reply(client, messages.get_update(content), kept=size_of(state), notes=dict(content["notes"]))

    def commit(self, round_number: int, clients: Sequence[int]) -> None:
        self.local.commit(round_number, clients)

    def score(self, weights: Arrays, thresholds: Tensor | None = None) -> Tensor | None:
        return self.local.score(weights, thresholds)

    def validate(self, weights: Arrays, grid: Tensor | None = None) -> Tensor | None:
        return self.local.validate(weights, grid)


# --- the client's side -----------------------------------------------------------------------------------------------


def client_app() -> ClientApp:
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from flwr.app import Message as FlowerMessage

        return FlowerMessage(simulated_visit(message.content), reply_to=message)

    return app


@lru_cache(maxsize=2)
def rebuilt(text: str, mark: str) -> tuple[Plan, ModelPair]:
    """The plan that this configuration text describes, built once per process, if its data are those of the run."""
    torch.set_num_threads(1)
    plan = experiment.plan(configs.from_table(tomllib.loads(text)))
    if experiment.data_fingerprint(plan.federation) != mark:
        raise UserError("the files of the parties changed after the run had started; restore them and resume the run")
    return plan, ModelPair(plan.model)


def simulated_visit(content: RecordDict) -> RecordDict:
    """One visit of a client whose rows the configuration describes."""
    from flwr.app import ConfigRecord, MetricRecord
    from flwr.app import RecordDict as FlowerRecords

    task = content["task"]
    try:
        plan, models = rebuilt(str(task["config"]), str(task["data"]))
    except UserError as error:
        return FlowerRecords({"stopped": ConfigRecord({"reason": str(error)})})
    client = int(task["client"])
    party = plan.federation.parties[client]
    callback = local.SimulationCallback(party, threading.Event())
    weights, extra, state = (messages.get(content, name) for name in ("weights", "extra", "state"))
    server = Server(weights, len(plan.federation.parties), plan.model.class_arrays, extra)
    key = (plan.config.seed, int(task["round"]), client)
    update, state = train_client(
        plan.algorithm, models, server, party.train, state, plan.config.training, key, callback, party.validation
    )
    reply = FlowerRecords()
    messages.put_update(reply, update)
    messages.put(reply, "state", state)
    reply["notes"] = MetricRecord(dict(callback.notes))
    return reply


engine = Flower
