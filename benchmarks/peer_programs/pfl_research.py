"""FedAvg in pfl-research."""

import numpy as np
import torch
from common import BATCH, CHOSEN, CLIENTS, RATE, ROUNDS, client_rows, clock, rows
from network import network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F

parties = [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in client_rows()]
test = [torch.from_numpy(part.copy()) for part in rows("test")]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def loss(self, x, y, eval=False):
        return F.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=True):
        right = (self.layers(x).argmax(1) == y).sum().item()
        return {"accuracy": Weighted(right, len(x))}


class Scored(TrainingProcessCallback):
    def on_train_begin(self, *, model):
        clock.begin()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        found = aggregate_metrics[StringMetricName("Central val | accuracy")]
        clock.scored(found.overall_value)
        return False, Metrics()


def dataset(client):
    x, y = parties[client]
    order = torch.randperm(len(x))
    return Dataset(raw_data=[x[order], y[order]], user_id=str(client))


class EveryRound(CentralEvaluationCallback):  # also after the first round, and not before it
    def on_train_begin(self, *, model):
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        return self._eval(model)


model = Network()
sampler = get_user_sampler("random", range(CLIENTS))
np.random.seed(1)
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS + 1, train_cohort_size=CHOSEN, val_cohort_size=0
    ),
    backend=SimulatedBackend(training_data=FederatedDataset(dataset, sampler), val_data=None),
    model=PyTorchModel(
        model=model,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    ),
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH, local_max_grad_norm=None
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=10_000),
    callbacks=[EveryRound(Dataset(raw_data=test), NNEvalHyperParams(local_batch_size=10_000)), Scored()],
    send_metrics_to_platform=False,
)
