"""The model of a party with an encoder of its own, `[encoder.parties]`: built, fitted and kept at the party."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedalign.config import Config
from fedalign.inference.card import Encoder
from fedalign.inference.storage import write_model
from fedalign.ingest.offer import Agreement
from fedalign.learning.local_training import ModelPair
from fedalign.learning.model import DualEncoder
from fedalign.learning.own_encoders import OwnEncoders, load_own
from fedalign.learning.rounds import Plan
from fedalign.runs.own_encoders import choice_of, first_party_model
from fedalign.runs.results import label_card
from fedalign.types import Arrays, Examples, Federation

FOLDER = "model"  # in the party's folder; read by predict, serve and export


def federation_of(agreed: Agreement) -> Federation:
    """What a party knows of the federation: how rows are read and labels are named, no other party."""
    return Federation(agreed.task, agreed.label_names, [], agreed.inputs, aliases=agreed.aliases)


def own_models(
    config: Config, agreed: Agreement, common: DualEncoder, party: str, client: int, rows: Examples
) -> ModelPair:
    """The party's model before its first round, the same as in a simulation; fitted on its own rows if need be."""
    return ModelPair(first_party_model(config, federation_of(agreed), common, party, client, rows))


def scored_model(
    algorithm: OwnEncoders, models: ModelPair, weights: Arrays, state: Arrays, classes: Tensor
) -> DualEncoder:
    """The party's model with the server's class vectors, as it predicts."""
    return load_own(models.start.load(weights), weights, state, algorithm.kept_classes(classes))


def keep_model(
    folder: Path,
    config: Config,
    agreed: Agreement,
    algorithm: OwnEncoders,
    party: str,
    model: DualEncoder,
    thresholds: Tensor | None,
) -> None:
    """Writes the party's model, with which it predicts after the run."""
    plan = Plan(config, federation_of(agreed), algorithm, model)
    encoder = Encoder(**choice_of(config, party, model).model_dump(mode="json"))
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    write_model(folder / FOLDER, model.arrays(), label_card(plan, thresholds).model_copy(update={"encoder": encoder}))
