"""The client of FedAvg in Flower; a module of its own, so that Ray's workers keep its rows."""

import functools

import torch
from common import BATCH, RATE, client_rows
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from network import network
from torch.nn import functional as F

client_app = ClientApp()


@functools.cache
def parties():
    torch.set_num_threads(1)
    return [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in client_rows()]


@client_app.train()
def train(message, context):
    x, y = parties()[context.node_config["partition-id"]]
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for batch in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    found = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(found), reply_to=message)
