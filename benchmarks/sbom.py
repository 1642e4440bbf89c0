"""A software bill of materials (CycloneDX 1.5, JSON) of the installed package and all that it requires.

    python benchmarks/sbom.py --out sbom.json        # the package and its base dependencies
    python benchmarks/sbom.py --extras all           # with the extras as well

Names, versions and licences come from the installed distributions. The SHA-256 of a component is that of its RECORD,
the list of its installed files with their hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement


def required(name: str, extras: frozenset[str], found: dict[str, metadata.Distribution]) -> list[str]:
    """Adds the distribution and all that it requires to `found`; returns the names it requires itself."""
    distribution = metadata.distribution(name)
    found[key(name)] = distribution
    direct = []
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})
        if not wanted:
            continue
        try:
            if key(requirement.name) not in found or requirement.extras:
                required(requirement.name, frozenset(requirement.extras), found)
            direct.append(key(requirement.name))
        except metadata.PackageNotFoundError:
            continue  # not installed, so not part of this environment
    return direct


def key(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def component(name: str, distribution: metadata.Distribution) -> dict[str, Any]:
    version = distribution.version
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    licence = distribution.metadata.get("License-Expression") or (distribution.metadata.get("License") or "")[:100]
    if licence:
        found["licenses"] = [{"license": {"name": licence.splitlines()[0]}}]
    record = distribution.read_text("RECORD")
    if record:
        found["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(record.encode()).hexdigest()}]
    return found


def bill(extras: frozenset[str]) -> dict[str, Any]:
    found: dict[str, metadata.Distribution] = {}
    required("fedalign", extras, found)
    components = [component(name, one) for name, one in sorted(found.items())]
    (own,) = [one for one in components if one["name"] == "fedalign"]
    others = [one for one in components if one is not own]
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([one["bom-ref"] for one in components]))
    depends = []
    for name, distribution in sorted(found.items()):
        direct = required(name, frozenset(), {**found})
        refs = sorted({f"{other}@{found[other].version}" for other in direct if other in found})
        depends.append({"ref": f"{name}@{distribution.version}", "dependsOn": refs})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": others,
        "dependencies": depends,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("sbom.json"))
    options = parser.parse_args()
    found = bill(frozenset(options.extras))
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(found['components'])} components")


if __name__ == "__main__":
    main()
