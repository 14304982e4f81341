"""Reading and walking of GBNF texts, for tests and benchmarks: the server hands its grammars to llama.cpp."""

from grammars.testing.gbnf import InvalidGrammar, read
from grammars.testing.matcher import Matcher

__all__ = ["InvalidGrammar", "Matcher", "read"]
