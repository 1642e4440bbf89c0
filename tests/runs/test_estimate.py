"""How long a run is said to take before it starts."""

from __future__ import annotations

from dataclasses import replace

from fedalign.runs.estimate import VISIT, seconds_of_run
from helpers.federations import plan


def test_every_exchange_visits_every_party_of_the_analytic_method() -> None:
    """3,000 parties: at least 3,000 visits for each of the exchanges that are left."""
    few = plan("analytic", rounds=1)
    parties = [few.federation.parties[number % 4] for number in range(3000)]
    many = replace(few, federation=replace(few.federation, parties=parties))
    exchanges = many.algorithm.planned_rounds(many.model, 1)
    assert seconds_of_run(many, 0) > exchanges * 3000 * VISIT
    assert seconds_of_run(few, 0) < seconds_of_run(many, exchanges - 1)
