"""Grammar rules, and the builders that write a schema's values as rules."""
