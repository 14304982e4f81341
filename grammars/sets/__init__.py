"""Boolean algebra over sets of numbers and strings."""
