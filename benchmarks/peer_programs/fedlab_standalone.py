"""FedAvg in FedLab's standalone simulation."""

import logging

import torch
import vision  # noqa: F401
from common import BATCH, CHOSEN, CLIENTS, RATE, ROUNDS, client_rows, clock, rows
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from network import network

logging.disable(logging.INFO)
parties = [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in client_rows()]
test_x, test_y = (torch.from_numpy(part.copy()) for part in rows("test"))


class Parties(FedDataset):
    def get_dataloader(self, id, batch_size, type="train"):
        x, y = parties[id]
        return [(x[batch], y[batch]) for batch in torch.randperm(len(x)).split(batch_size)]


class Pipeline(StandalonePipeline):
    def evaluate(self):
        with torch.no_grad():
            clock.scored((self.handler.model(test_x).argmax(1) == test_y).float().mean())


trainer = SGDSerialClientTrainer(network(), CLIENTS)
trainer.setup_dataset(Parties())
trainer.setup_optim(1, BATCH, RATE)
handler = SyncServerHandler(network(), ROUNDS, CHOSEN / CLIENTS)
clock.begin()
Pipeline(handler, trainer).main()
