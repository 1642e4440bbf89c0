"""Why does a run do well or badly? Distances between the parties' representations, and the terms of the paper's bound.

Imports `runs`, `report`, `learning` and `data`.
"""
