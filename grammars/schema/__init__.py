"""JSON Schema documents and their normal form."""
