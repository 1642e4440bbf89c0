"""The model of a configuration before the first round, and the fixed feature map where the method needs one."""

from __future__ import annotations

from torch.nn import functional as F

from fedalign import registry
from fedalign.config import Config
from fedalign.encoders.stacked import stacked_vectors
from fedalign.errors import UserError
from fedalign.inputs import InputKind, Shape
from fedalign.labels import vectors
from fedalign.learning.model import AdaptedLabelEncoder, DualEncoder, LabelEncoder, random_rows, simplex_rows
from fedalign.randomness import torch_generator
from fedalign.types import Federation

PRIVATE_FEATURES = 200  # of a feature map with noise: more features have more noise in all


def with_feature_map(config: Config, inputs: InputKind, classes: int) -> Config:
    """The configuration with a fixed feature map for this kind of rows, if the algorithm needs one and its encoder is
    none: instead of the encoder, or stacked with it."""
    algorithm = registry.build("algorithms", config.algorithm.name, config.algorithm.options)
    if not algorithm.fixed_features and algorithm.base == "none":
        return config
    options = registry.build("encoders", config.encoder.name, config.encoder.options)
    if getattr(options, "fixed", False) or getattr(options, "stacked", False):
        if algorithm.base != "none" and not getattr(options, "stacked", False):
            raise UserError(f"algorithm.base needs an encoder that is trained; {config.encoder.name} is not")
        return config
    # an encoder may have a fixed form of itself, which knows more than the feature map that suits every row of a kind
    section = options.fixed_map() if hasattr(options, "fixed_map") else {"name": inputs.feature_map}
    name = section.pop("name")
    if not name:
        raise UserError(f"there is no fixed feature map for {inputs.rows_called}; choose another algorithm.name")
    chosen = registry.build("encoders", name, section)
    filled = {key: getattr(chosen, key) for key in registry.option_names(type(chosen))}
    if config.privacy.on and "features" in filled:
        filled["features"] = PRIVATE_FEATURES
    found = registry.EncoderChoice(name=name, **filled)
    if algorithm.base != "none":
        if not registry.is_own("encoders", config.encoder.name):
            raise UserError(f"algorithm.base works with the encoders {', '.join(registry.names('encoders'))}")
        trained = config.encoder.model_dump(mode="json")
        found = registry.EncoderChoice(
            name="stacked", trained=trained, fixed_map={"name": name, **filled}, classes=classes
        )
    return config.model_copy(update={"encoder": found})


def model(config: Config, data: Federation, head: str) -> DualEncoder:
    """The model before the first round: the same data encoder for every algorithm of a seed."""
    shape: Shape = data.inputs.shape
    options = registry.build("encoders", config.encoder.name, config.encoder.options)
    encoder = options.build(shape, torch_generator(config.seed, "encoder"))
    classes, dim = len(data.label_names), encoder.dim
    stacked = getattr(options, "stacked", False)
    normalised = data.task == "single" if config.labels.normalise is None else config.labels.normalise
    if config.labels.adapter and head == "names":
        if stacked:
            raise UserError("labels.adapter does not go with algorithm.base; remove one of them")
        adapted = vectors.adapter(data.label_names, dim, config.labels, config.seed)
        return DualEncoder(encoder, AdaptedLabelEncoder(*adapted, normalise=normalised), data.task)
    dim -= classes if stacked else 0  # class vectors have an entry for each score
    normalise = False
    if head in ("linear", "rows"):
        rows = random_rows(classes, dim, torch_generator(config.seed, "head"))
    elif head == "simplex":
        rows = simplex_rows(classes, dim, torch_generator(config.seed, "head"))
    else:
        how = config.labels if head == "names" else config.labels.model_copy(update={"source": "random"})
        rows, normalise = vectors.make(data.label_names, dim, how, config.seed), normalised
    if stacked:
        rows, normalise = stacked_vectors(F.normalize(rows, dim=1)), False
    return DualEncoder(encoder, LabelEncoder(rows, bias=head == "linear", normalise=normalise), data.task)
