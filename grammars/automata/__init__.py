"""Regular languages: automata, regular expressions, numbers and formats."""
