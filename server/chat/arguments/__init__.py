"""The spellings of a tool call's arguments: grammar, reader and renderer of each."""
