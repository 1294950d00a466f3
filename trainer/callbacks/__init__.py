"""Callbacks: any class with some of on_fit_start, on_train_batch, on_step_end, on_evaluation_batch, on_epoch_end,
on_validation_end, on_checkpoint, on_exception, on_fit_end, evaluated (a context), state_dict and load_state_dict; each
hook gets the RunState, on_train_batch the batch as well, on_evaluation_batch the split, the batch's index, what the
task's step returned, and the batch. refuses(config, key, node), a static method, yields what cannot work, before
anything starts.
Those of Lightning are called as Lightning calls them (lightning.py), or refused (lightning_refusals.py)."""
