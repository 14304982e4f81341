"""What a model is and where it goes: GGUF headers, hyperparameters, devices, the memory plan."""
