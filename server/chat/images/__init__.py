"""Images of a request: headers, decoding, placeholders in the prompt."""
