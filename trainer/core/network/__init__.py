"""What a config does to a network and its parameters before the training: also without a training, for a plan."""
