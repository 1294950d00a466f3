"""Static checks of classes written for Lightning: bases, hooks, uses of the trainer. Nothing is built."""
