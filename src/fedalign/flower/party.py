"""A party's side: answers the server's messages from its own file, with its state and receipts on its own disk."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import fedalign
from fedalign import config as configs
from fedalign.config import Config
from fedalign.data import cache
from fedalign.data.cache import Prepared
from fedalign.errors import UserError
from fedalign.flower import messages
from fedalign.flower.kit import SERVER_ONLY
from fedalign.flower.party_model import federation_of, keep_model, own_models, scored_model
from fedalign.flower.party_privacy import (
    Answers,
    Asked,
    check_deployable,
    check_report,
    counted_once,
    own_part,
    trained_once,
)
from fedalign.flower.party_state import Memory
from fedalign.ingest.offer import Agreement
from fedalign.learning import metrics, scoring
from fedalign.learning.algorithm import Algorithm
from fedalign.learning.local_training import ModelPair, train_client
from fedalign.learning.model import DualEncoder
from fedalign.learning.own_encoders import OwnEncoders
from fedalign.privacy.secure_sums.identity import Identity
from fedalign.runs import experiment
from fedalign.runs.own_encoders import sharing_class_vectors
from fedalign.system.files import stem, write_atomically
from fedalign.types import Arrays, Examples, Sequences, Server, Update, size_of

if TYPE_CHECKING:
    from flwr.app import RecordDict

    from fedalign.flower.party_rows import Rows

AT_ONCE = 2  # thresholds per class of a method that decides by its own: the method's, and 0.5
# what decides what is read and what leaves
BINDING = ("algorithm", "dataset", "encoder", "training", "thresholds", "rounds", "privacy")


@dataclass(frozen=True)
class PartySetup:
    """This party: what its SuperNode was given with --node-config, and the run's configuration."""

    config: Config
    data: Path | None
    name: str
    folder: Path  # state and receipts
    partition: int | None = None  # for trials: a client of a preset instead of a file

    @classmethod
    def from_node(cls, text: str, node: Mapping[str, Any]) -> PartySetup:
        config = configs.sections(tomllib.loads(text), where="the run's configuration")
        if "config" in node:
            check_bound(config, Path(str(node["config"])).expanduser())
        if "data" in node:
            data = Path(str(node["data"])).expanduser()
            if not data.exists():
                raise UserError(f"there is no file {data}; check data= in --node-config")
            name = str(node.get("party", stem(data)))
            return cls(config, data, name, Path(str(node.get("memory", data.parent / ".fedalign"))) / name)
        if "partition-id" in node:
            partition = int(node["partition-id"])
            folder = Path(str(node.get("memory", ".fedalign"))) / f"client-{partition}"
            return cls(config, None, f"client-{partition}", folder, partition)
        raise UserError("this SuperNode has no data; start it with --node-config 'data=\"/path/of/your/file.csv\"'")

    def parts(self, agreed: Agreement) -> dict[str, Examples]:
        """Training, validation and test rows, as far as there are any. A process lives for one message, so the prepared
        rows are kept on this party's disk until the file or the agreement changes."""
        if self.data is None:
            return self.read().parts(agreed)
        path = self.folder / "rows.safetensors"
        source = [str(self.data.resolve()), self.name, fedalign.__version__, configs.as_table(self.config)]
        mark = cache.fingerprint(
            self.data.parent, json.dumps([*source, agreed.model_dump_json()]), cache.files_of(self.data)
        )
        found = cache.kept(path, mark, lambda: Prepared(flat(self.read().parts(agreed))), private=True)
        return unflat(found.arrays)

    def read(self) -> Rows:
        from fedalign.flower.party_rows import FileRows, PresetRows  # which import the readers of files

        return FileRows(self) if self.data is not None else PresetRows(self)


def check_bound(asked: Config, path: Path) -> None:
    """Refuses a run that would read or send anything else than the configuration that this party accepted."""
    try:
        held = configs.sections(tomllib.loads(path.read_text(encoding="utf-8")), where=str(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check config= in --node-config") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    asked = asked.model_copy(update={"engine": held.engine})
    different = differences(held, asked)
    if different and not any(key.endswith(".name") for key in different):
        # one may leave out a default that the other states; then the completed configurations are compared
        different = differences(configs.complete(held), configs.complete(asked))
    if different:
        raise UserError(
            f"the server's configuration differs from {path} in {', '.join(different[:4])}; ask its operators for "
            "theirs, read it with fedalign check --what-leaves, and use it in place of yours"
        )


def differences(held: Config, asked: Config) -> list[str]:
    """The settings that bind a party and are not the same, by dotted name; another choice before its options."""
    ours, theirs = binding(held), binding(asked)
    different = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
    return sorted(different, key=lambda key: (not key.endswith(".name"), key))


def binding(config: Config) -> dict[str, Any]:
    table, found = configs.as_table(config), {}
    for section in BINDING:
        options = table[section] if isinstance(table[section], dict) else {"": table[section]}
        for key, value in options.items():
            if section != "dataset" or key not in SERVER_ONLY:
                found[f"{section}.{key}".rstrip(".")] = value
    return found


def flat(parts: Mapping[str, Examples]) -> Arrays:
    arrays: Arrays = {}
    for name, part in parts.items():
        x = {"x": part.x} if not isinstance(part.x, Sequences) else {"values": part.x.values, "offsets": part.x.offsets}
        labels = {"y": part.y.bool(), "known": part.known, "classes": part.classes}
        arrays |= {f"{name}/{what}": array for what, array in (x | labels).items()}
    return arrays


def unflat(arrays: Arrays) -> dict[str, Examples]:
    parts: dict[str, Arrays] = {}
    for key, array in arrays.items():
        name, _, what = key.partition("/")
        parts.setdefault(name, {})[what] = array
    return {
        name: Examples(
            Sequences(part["values"], part["offsets"]) if "values" in part else part["x"],
            part["y"].float(),
            part["known"],
            part["classes"],
        )
        for name, part in parts.items()
    }


# --- answers --------------------------------------------------------------------------------------------------------


def answer(kind: str, content: RecordDict, text: str, node: Mapping[str, Any]) -> RecordDict:
    """The reply to a message: an offer, an update, or scores. Both messages are written to the party's receipts, the
    reply before it leaves."""
    from flwr.app import RecordDict as Records

    torch.set_num_threads(1)
    setup = PartySetup.from_node(text, node)
    identity = Identity.of_folder(setup.folder)
    messages.keep_receipt(setup.folder, "in", kind, "server", content, identity=identity)
    check_deployable(setup.config)
    reply = Records()
    if kind == "offer":
        check_report(setup.config)
        offered = setup.read().offer().model_dump_json()
        write_atomically(setup.folder / "offer.json", offered)  # a receipt shortens long texts
        messages.put_text(reply, "offer", {"offer": offered})
    else:
        agreed = Agreement.model_validate_json(messages.text_of(content, "task", "agreed"))
        algorithm, models = built(text, agreed.model_dump_json())
        if setup.config.privacy.protected:
            asked = Asked(
                str(content["task"]["run"]),
                int(content["task"]["client"]),
                tuple(json.loads(str(content["task"].get("parties", "[]")))),
                agreed.label_names,
            )
            algorithm = own_part(algorithm, setup.config, setup.data, setup.name, identity, asked)
        parts = setup.parts(agreed)
        if isinstance(algorithm, OwnEncoders):
            client = int(content["task"]["client"])
            models = own_models(setup.config, agreed, models.model, setup.name, client, parts["train"])
        (train if kind == "train" else score)(setup, algorithm, models, parts, content, reply)
        echo = {key: content["task"][key] for key in ("run", "round", "nonce")}
        messages.put_text(reply, "echo", {**echo, "party": setup.name})
    messages.keep_receipt(setup.folder, "out", kind, "server", reply, identity=identity)
    return reply


@lru_cache(maxsize=2)
def built(text: str, agreed_text: str) -> tuple[Algorithm, ModelPair]:
    """Algorithm and model from the configuration. Class vectors come with the weights, so no label file is needed."""
    config = configs.sections(tomllib.loads(text))
    algorithm = experiment.algorithm_of(config)
    data = federation_of(Agreement.model_validate_json(agreed_text))
    if config.encoder.parties:
        algorithm = sharing_class_vectors(algorithm, config, data)
    else:
        config = experiment.with_feature_map(config, data.inputs, len(data.label_names))
    blank = config.model_copy(update={"labels": config.labels.model_copy(update={"source": "random", "file": ""})})
    return algorithm, ModelPair(experiment.model(blank, data, algorithm.head))


def server_of(content: RecordDict, models: ModelPair, store: Memory) -> Server:
    """The server's arrays, from a message. Weights that were kept when they were scored are not sent again."""
    largest = messages.most_bytes(models.model.state_dict())
    extra = messages.get(content, "extra")
    if "held" in content:
        weights = store.weights(messages.text_of(content, "held", "sha256", 64))
    else:
        weights = messages.views(content, "weights", largest)  # nobody writes to the server's weights
    if "keep" in content["task"]:
        store.keep_weights(weights, messages.text_of(content, "task", "keep", 64))
    return Server(weights, int(content["task"]["clients"]), models.model.class_arrays, extra)


def train(
    setup: PartySetup,
    algorithm: Algorithm,
    models: ModelPair,
    parts: Mapping[str, Examples],
    content: RecordDict,
    reply: RecordDict,
) -> None:
    task = content["task"]
    store = Memory(setup.folder, str(task["run"]))
    server = server_of(content, models, store)
    number = int(task["round"])
    counted = int(task["counted"])
    state = store.of(counted, models.model.class_arrays, len(models.model.anchors()))
    key = (setup.config.seed, number, int(task["client"]))

    def visit() -> tuple[Update, Arrays]:
        rows, validation = parts["train"], parts.get("validation")
        return train_client(algorithm, models, server, rows, state, setup.config.training, key, validation=validation)

    update, after = trained_once(Answers(store.folder), algorithm, server.extra, key[2], visit)
    store.keep(number, after, counted)
    messages.put_update(reply, update)
    messages.put_text(reply, "kept", {"kept": size_of(after)})


def score(
    setup: PartySetup,
    algorithm: Algorithm,
    models: ModelPair,
    parts: Mapping[str, Examples],
    content: RecordDict,
    reply: RecordDict,
) -> None:
    """Counts on the party's own test and validation rows; at the thresholds the server asks about, if it does."""
    store = Memory(setup.folder, str(content["task"]["run"]))
    weights = server_of(content, models, store).weights
    asked = messages.get(content, "thresholds")
    own = algorithm.own_thresholds and all(len(values) <= AT_ONCE for values in asked.values() if values.dim() == 2)
    if asked and not setup.config.thresholds and not own:
        raise UserError("the server asks for counts at thresholds; ask its operators to set thresholds = true for all")
    held = {name: parts[name] for name in ("test", "validation") if name in parts}
    model = models.start.load(weights)
    if isinstance(algorithm, OwnEncoders):
        state = store.of(int(content["task"]["counted"]), model.class_arrays, len(model.anchors()))
        model = scored_model(algorithm, models, weights, state, parts["train"].classes)
        agreed = Agreement.model_validate_json(messages.text_of(content, "task", "agreed"))
        decided = asked.get("test")
        decided = decided if decided is not None and decided.dim() == 1 else None
        keep_model(setup.folder, setup.config, agreed, algorithm, setup.name, model, decided)

    def counts() -> Arrays:
        return {name: count(model, rows, asked.get(name)) for name, rows in held.items()}

    if setup.config.privacy.protected:
        found = counted_once(Answers(store.folder), algorithm, weights, parts["train"].classes, counts)
    else:
        found = counts()
    messages.put(reply, "counts", found)


def count(model: DualEncoder, rows: Examples, thresholds: torch.Tensor | None) -> torch.Tensor:
    """(C, 4) counts at 0.5 or at one threshold per class (C,), or (T, C, 4) for a grid of thresholds (T, 1 or C)."""
    logits = scoring.logits(model, rows.x)
    if thresholds is not None and thresholds.dim() == 2:
        return metrics.count_at(logits, rows.y, rows.known, thresholds)
    return metrics.count(metrics.decide(logits, model.task, thresholds), rows.y, rows.known)
