"""Which sequences the next step takes, and how much of each prompt: policy alone, without llama.cpp."""
