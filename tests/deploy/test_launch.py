"""What the processes of a deployment change in Flower."""

from __future__ import annotations

import time

import pytest

from fedalign.deploy import launch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_object_id, get_object_tree


def test_an_object_that_comes_a_moment_later_costs_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks again after a second. The worker begins before its message is stored, so that would be every time."""
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        monkeypatch.setattr(
            getattr(inflatable_utils, name), "__kwdefaults__", dict(getattr(inflatable_utils, name).__kwdefaults__)
        )
    launch.pull_quickly()
    record = ConfigRecord({"a": 1})
    content = record.deflate()
    asked: list[float] = []

    def pull(number: str) -> bytes:
        asked.append(time.monotonic())
        if len(asked) < 3:
            raise inflatable_utils.ObjectUnavailableError(number)
        assert number == get_object_id(content)
        return content

    found = inflatable_utils.pull_and_inflate_object_from_tree(get_object_tree(record), pull, lambda _: None)
    assert found == record
    assert asked[-1] - asked[0] < 0.5
