"""Your own files: `dataset.name = "files"`. How they are read is in `ingest`."""

from __future__ import annotations

from fedalign.ingest.party_files import Files

dataset = Files
