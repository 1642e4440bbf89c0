"""Fixed feature maps that do not depend on the parties' rows."""

from __future__ import annotations

from torch import Tensor, nn

from fedalign.types import Rows


class NothingToFit(nn.Module):
    """A feature map without statistics, so parties need no exchange before their sums."""

    @property
    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def statistics(self, x: Rows) -> dict[str, Tensor]:
        return {}

    def fit(self, sums: dict[str, Tensor]) -> None:
        """Nothing to set."""
