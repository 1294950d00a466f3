"""Callbacks: any class with some of on_fit_start, on_step_end, on_epoch_end, on_validation_end, on_checkpoint,
on_exception, on_fit_end, evaluated (a context), state_dict and load_state_dict; each hook gets the RunState.
Those of Lightning are called as Lightning calls them (lightning.py), or refused (lightning_refusals.py)."""
