"""Callbacks: any class with some of on_fit_start, on_train_batch, on_step_end, on_evaluation_batch, on_epoch_end,
on_validation_end, on_checkpoint, on_exception, on_fit_end, evaluated (a context), state_dict and load_state_dict; each
hook gets the RunState, on_train_batch the batch as well, on_evaluation_batch the split, the batch's index, the
output of the task's step, and the batch. validate_config(config, key, node), a static method, yields the problems of a
config before anything starts.
Lightning's callbacks are called as by Lightning (core.lightning_callbacks), or refused (config.lightning.callbacks)."""
