"""With averages over owners the vectors of other classes are not used, so a client need not send them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedalign.errors import UserError
from fedalign.learning.rounds import Reply, accept_replies
from fedalign.types import Update
from helpers.federations import plan, play

VECTORS = "label_encoder.weight"


@pytest.mark.parametrize(("name", "task"), [("fedalign", "single"), ("fedavg", "multi")])
def test_the_model_is_the_same_to_the_bit_with_fewer_bytes(name: str, task: str) -> None:
    whole, short = (
        play(plan(name, task, algorithm__average_over_owners=True, algorithm__own_class_vectors=own))
        for own in (False, True)
    )
    for key, value in whole[-1].server.weights.items():
        assert torch.equal(value, short[-1].server.weights[key]), key
    assert int(str(short[-1].record["bytes_up"])) < int(str(whole[-1].record["bytes_up"]))


def test_the_server_completes_an_update_and_rejects_one_that_fits_neither_way() -> None:
    prepared = plan("fedalign", algorithm__own_class_vectors=True)
    server, party = prepared.start(), prepared.federation.parties[0]
    own = party.train.classes
    assert 0 < int(own.sum()) < len(own) - 1
    weights = {name: server.weights[name] for name in server.returned}
    rows, spec = weights[VECTORS], prepared.algorithm.reply_spec(server, 1)
    update = Update({**weights, VECTORS: rows[own] + 1}, 3, own)
    [(_, full)], rejected = accept_replies([Reply(0, update)], spec, prepared)
    assert not rejected
    assert torch.equal(full.weights[VECTORS], torch.where(own.unsqueeze(1), rows + 1, rows))
    longer = replace(update, weights={**weights, VECTORS: rows[: int(own.sum()) + 1]})
    found, rejected = accept_replies([Reply(0, longer)], spec, prepared)
    assert not found
    assert f"{VECTORS}' has shape" in str(rejected[party.name])


def test_without_averages_over_owners_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"own_class_vectors needs algorithm.average_over_owners = true"):
        plan("fedavg", algorithm__own_class_vectors=True)
