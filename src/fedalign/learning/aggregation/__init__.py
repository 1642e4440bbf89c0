"""How do the clients' updates become one? `means` averages, `clipping` limits, `robust` votes. Pure functions.

`clipping` and `robust` take updates and return updates. So every algorithm's own `aggregate` works behind them.
"""

from fedalign.learning.aggregation.clipping import changes_of, clipped, limits_of, norm, shrinkage, with_limits
from fedalign.learning.aggregation.defence import defended, promise
from fedalign.learning.aggregation.means import added, average_over_owners, client_votes, mean

__all__ = [
    "added",
    "average_over_owners",
    "changes_of",
    "client_votes",
    "clipped",
    "defended",
    "limits_of",
    "mean",
    "norm",
    "promise",
    "shrinkage",
    "with_limits",
]
