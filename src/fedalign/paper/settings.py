"""Finds the settings of the paper and whether their data are available on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedalign import config as configs
from fedalign import registry
from fedalign.data.downloads import data_folder
from fedalign.errors import UserError, nearest
from fedalign.paper import published


@dataclass(frozen=True)
class PaperSetting:
    """A setting of the paper, and how to get its data if they are missing."""

    preset: str
    title: str
    absent: str = ""  # how to get its data; empty if they are available
    stands_for: str = ""  # the paper's setting that it replaces


def known() -> list[str]:
    """Returns the presets of the paper in its order, then those that replace restricted data."""
    return [*published.table1(), *published.STAND_INS]


def settings(words: Sequence[str], only: Sequence[str] = ()) -> list[PaperSetting]:
    """Returns the settings with these names (preset, data set or title in the paper), or all of them."""
    names: dict[str, None] = {}
    for word in words:
        names.update(dict.fromkeys(_matching(word)))
    chosen = list(names) or [name for name in known() if not only or name in only or name in published.STAND_INS]
    return [_choice(name, asked=bool(names)) for name in chosen]


def _matching(word: str) -> list[str]:
    low = word.lower()
    presets = configs.presets()
    if low in known() or low in presets:
        return [low]
    by_title = [p for p, one in published.table1().items() if one.title.lower() == low]
    by_data = [p for p in (*known(), *presets) if p in presets and configs.load(p).dataset.name == low]
    if by_title or by_data:
        return by_title or list(dict.fromkeys(by_data))
    raise UserError(f"unknown data set {word!r}{nearest(word, dict.fromkeys([*known(), *presets]))}")


def _choice(preset: str, asked: bool) -> PaperSetting:
    stands_for = published.STAND_INS.get(preset, "")
    described = published.table1().get(preset)
    title = described.title if described else preset
    if preset not in configs.presets():
        return PaperSetting(preset, title, "this version has no preset for it", stands_for)
    dataset = configs.load(preset).dataset
    kind = registry.build("datasets", dataset.name, dataset.options)
    if kind.present(data_folder()):
        return PaperSetting(preset, title, "", stands_for)
    if asked and getattr(kind, "fetched_on_first_run", False):
        return PaperSetting(preset, title, "", stands_for)
    return PaperSetting(preset, title, kind.about.how, stands_for)
