"""FedAvg in fedalign's local engine."""

import os

from common import BATCH, CHOSEN, RATE, ROUNDS, client_rows, clock, rows

import fedalign

federation = fedalign.Federation.from_arrays(
    {f"client {m}": part for m, part in enumerate(client_rows())}, test=rows("test"), validation=0.0
)
settings = {
    "clients_per_round": CHOSEN,
    "encoder.name": "network:Encoder",
    "training.optimizer": "sgd",
    "training.lr": RATE,
    "training.batch_size": BATCH,
    "training.epochs": 1,
}
if os.environ.get("PEERS_STACKED"):
    settings["engine.stacked"] = True
clock.begin()
fedalign.train(
    federation,
    "fedavg",
    ROUNDS,
    progress=False,
    settings=settings,
    callback=lambda now: clock.scored(now.accuracy),
)
