"""What happened in a run? Run folders to one HTML page.

Imports `runs`, `learning`, `data` and `paper.published`.
"""
