"""Regular languages: minimal automata, their operations, regular expressions, numbers and formats."""
