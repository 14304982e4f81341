"""The worker process of one model: loads it, runs its steps, sends what comes out."""
