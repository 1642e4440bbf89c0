"""Whether Flower is installed, and the environment in which it sends nothing to anyone but the parties."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedalign.errors import UserError

# Flower and Ray send telemetry unless these are set; the fourth keeps a server from installing an app's dependencies
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def require_flower() -> None:
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise UserError("the flower engine needs Flower; install it with: pip install 'fedalign[flower]'") from error
    if not found.startswith("1.41."):
        raise UserError(
            f"the flower engine was made for flwr 1.41, not {found}; pip install 'flwr[simulation]==1.41.*'"
        )
