"""Which commands are there? One file per command; the file name is the name of the command.

Imports anything, but nothing heavy before a command runs.
"""
