"""What is a run on disk? Experiments, their folders, grids of them, progress and tracking.

Imports `learning`, `data`, `labels`, `inference` and `config`.
"""
