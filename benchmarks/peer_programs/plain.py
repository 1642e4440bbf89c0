"""FedAvg in plain PyTorch, as one writes it for an experiment."""

import copy

import torch
from common import BATCH, CHOSEN, CLIENTS, RATE, ROUNDS, client_rows, clock, rows
from network import network
from torch.nn import functional as F

parties = [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in client_rows()]
test_x, test_y = (torch.from_numpy(part.copy()) for part in rows("test"))
model = network()
clock.begin()
for _ in range(ROUNDS):
    found = []
    for client in torch.randperm(CLIENTS)[:CHOSEN].tolist():
        x, y = parties[client]
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), RATE)
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(local(x[batch]), y[batch]).backward()
            optimizer.step()
        found.append(local.state_dict())
    model.load_state_dict({name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]})
    with torch.no_grad():
        clock.scored((model(test_x).argmax(1) == test_y).float().mean())
