"""Who carries the messages? One file per engine; the file name is the value of `engine.name`.

Imports `learning` and `flower.messages`; never another plugin folder.
"""
