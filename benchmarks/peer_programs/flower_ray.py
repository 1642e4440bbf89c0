"""FedAvg in Flower's Ray simulation."""

import logging

import torch
from common import CHOSEN, CLIENTS, ROUNDS, clock, rows
from flower_client import client_app
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from network import network

logging.getLogger("flwr").setLevel(logging.ERROR)
server_app = ServerApp()


@server_app.main()
def main(grid, context):
    model = network()
    test_x, test_y = (torch.from_numpy(part.copy()) for part in rows("test"))

    def score(number, arrays):
        if number == 0:
            clock.begin()
            return
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            clock.scored((model(test_x).argmax(1) == test_y).float().mean())

    strategy = FedAvg(fraction_train=CHOSEN / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord(model.state_dict()), ROUNDS, evaluate_fn=score)


if __name__ == "__main__":
    init = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server_app, client_app, CLIENTS, backend_config={"init_args": init, "client_resources": resources})
