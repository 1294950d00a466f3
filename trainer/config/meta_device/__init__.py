"""Trial build on PyTorch's meta device, before anything starts."""
