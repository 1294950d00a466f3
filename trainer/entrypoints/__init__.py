"""Modules for `python -m`, and the dispatch by kind of run (training, doctor, model hopping). Public face:
start.start(run_dir, verb, checkpoint)."""
