"""`leyden find`: the range test of learning rates, and the largest batch size."""
