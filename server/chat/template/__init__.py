"""Chat templates: rendering, what a template can do, where each piece of a prompt comes from."""
