"""A trained network outside of training: its weights, its preprocessing, its predictions."""
