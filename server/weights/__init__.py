"""Model files: fetched, checked and kept."""
