"""What did the paper report, and what do we get? Its tables and figures, reproduced by command.

Imports `runs`, `report`, `labels` and `learning`.
"""
