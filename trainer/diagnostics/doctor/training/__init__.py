"""`leyden doctor --train`: short trainings that try strategies, restarts and speed on this hardware."""
