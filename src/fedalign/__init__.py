"""One classifier learned from parties that label different classes, without sharing data."""

from importlib.metadata import version

__version__ = version("fedalign")
