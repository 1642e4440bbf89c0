"""Which of the paper's settings can be run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedalign import config as configs
from fedalign import registry
from fedalign.data.downloads import data_folder
from fedalign.errors import UserError, nearest
from fedalign.paper import published


@dataclass(frozen=True)
class Choice:
    """A setting, and why it cannot be run if it cannot."""

    preset: str
    title: str
    absent: str = ""  # how to get its data; empty: it is here
    stands_for: str = ""  # the paper's setting in whose place it is


def known() -> list[str]:
    """The paper's settings in its order, then the open ones in their place."""
    return [*published.table1(), *published.STAND_INS]


def settings(words: Sequence[str], only: Sequence[str] = ()) -> list[Choice]:
    """The named settings (by preset, data set or the paper's title), or without a name all of them."""
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


def _choice(preset: str, asked: bool) -> Choice:
    stands_for = published.STAND_INS.get(preset, "")
    described = published.table1().get(preset)
    title = described.title if described else preset
    if preset not in configs.presets():
        return Choice(preset, title, "this version has no preset for it", stands_for)
    dataset = configs.load(preset).dataset
    kind = registry.build("datasets", dataset.name, dataset.options)
    if kind.present(data_folder()):
        return Choice(preset, title, "", stands_for)
    if asked and "by itself" in kind.about.how:
        return Choice(preset, title, "", stands_for)  # the first run fetches it
    return Choice(preset, title, kind.about.how, stands_for)
