"""Images: projector, encoder, and where their embeddings stand in a prompt."""
