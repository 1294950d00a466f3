"""strategy=local_sgd."""

from .strategy import LocalSGD as LocalSGD
