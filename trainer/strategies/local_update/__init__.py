"""What local-update strategies share: workers that take local steps between exchanges, in processes or simulated."""
