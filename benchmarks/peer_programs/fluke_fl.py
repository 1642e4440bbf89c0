"""FedAvg in fluke."""

import torch
import vision  # noqa: F401
from common import BATCH, CHOSEN, CLIENTS, RATE, ROUNDS, clock, rows
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver
from network import network

(x, y), (test_x, test_y) = ([torch.from_numpy(part.copy()) for part in rows(name)] for name in ("train", "test"))


class Scored(ServerObserver, FederationObserver):
    def server_evaluation(self, round, eval_type, evals, **kwargs):
        if round <= ROUNDS and eval_type == "global":
            clock.scored(evals["accuracy"])


env = FlukeENV()
env.set_seed(1)
env.set_device("cpu")
env.set_inmemory(True)
env.set_eval_cfg(locals=False, server=True, pre_fit=False, post_fit=False)
env.set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
optimizer = {"name": "SGD", "lr": RATE}
client = DDict(
    batch_size=BATCH,
    local_epochs=1,
    loss="CrossEntropyLoss",
    optimizer=optimizer,
    scheduler={"name": "StepLR", "step_size": 1, "gamma": 1},
)
federation = FedAVG(
    CLIENTS,
    DataSplitter(DataContainer(x, y, test_x, test_y, 10)),
    DDict(client=client, server=DDict(weighted=True), model=network()),
)
federation.set_callbacks([Scored()])
clock.begin()
federation.run(ROUNDS, CHOSEN / CLIENTS, finalize=False)
