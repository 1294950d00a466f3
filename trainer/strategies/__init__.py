"""How training is split over workers: one package a strategy, named as in the YAML, whose __init__ exports the class.
Shared: local_update/ (easgd, asgd, local_sgd), param_server/."""
