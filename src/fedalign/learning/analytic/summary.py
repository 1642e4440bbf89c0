"""What a run of analytic learning would send, and what it chose by itself."""

from __future__ import annotations

from typing import Any

from fedalign.learning.analytic.client import Stage
from fedalign.learning.analytic.server import reply_spec
from fedalign.learning.analytic.state import SUMS, Options, held, stage_of
from fedalign.learning.model import DualEncoder
from fedalign.types import ReplySpec, Server

NUMBERS = ("penalty", "omega", "temperature", "refinements", "first_loss", "last_loss", "first_error", "last_error")


def reply_specs(server: Server, options: Options) -> dict[str, ReplySpec]:
    """What a client would send over a whole run, by exchange."""
    found: dict[str, ReplySpec] = {}
    if stage_of(server) is Stage.STATISTICS:
        found["once: statistics of the feature map"] = reply_spec(server, Stage.STATISTICS)
    found["once: sums over its rows"] = reply_spec(server, Stage.SUMS)
    few, many = 1, max(len(options.penalties), len(options.omegas))
    if options.task == "single":
        found["once: losses and expected labels of candidates"] = _without_sums(server, Stage.CANDIDATES, many)
        found[f"{options.refinements} times: the same of one candidate"] = _without_sums(server, Stage.CANDIDATES, few)
    else:
        found["twice: histograms of validation scores of candidates"] = _without_sums(server, Stage.RANKING, many)
        found["once: histograms of scores"] = _without_sums(server, Stage.PRIORS, few)
    if options.likelihood:
        found[f"{options.likelihood + 1} times: gradient of the likelihood"] = _without_sums(
            server, Stage.GRADIENT, few
        )
    return found


def exchanges(model: DualEncoder, options: Options) -> int:
    """The number of exchanges of a run in which every client answers."""
    first = 2 if model.data_encoder.statistics_shapes else 1
    gradients = options.likelihood + 1 if options.likelihood else 0
    if options.task == "single":
        return first + 1 + options.refinements + gradients
    return first + (2 if len(options.omegas) > 1 else 1) + 1 + gradients


def _without_sums(server: Server, stage: Stage, candidates: int) -> ReplySpec:
    """Without the sums, which are sent once."""
    spec = reply_spec(server, stage, candidates)
    return ReplySpec({}, {name: one for name, one in spec.extra.items() if name not in SUMS})


def chosen(server: Server) -> dict[str, Any]:
    """What the method chose by itself."""
    found: dict[str, Any] = {"clients": held(server)}
    found |= {name: float(server.state[name]) for name in NUMBERS if name in server.state}
    if "priors" in server.state:
        found["priors"] = [round(float(p), 6) for p in server.state["priors"]]
    return found
