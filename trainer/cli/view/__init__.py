"""`leyden view`: TensorBoard that opens with the metrics, and names trials by what a sweep varies."""
