"""What happened in a run? Turns run folders into one HTML page.

Imports `runs`, `learning`, `data` and `paper.published`.
"""
