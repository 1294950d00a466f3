"""Model hopping (Cerebro, Nakandala et al. 2020): many models at once; the data stays on the workers, the models move.

Public face: worker.work, worker_group.HoppingWorkerGroup.
"""
