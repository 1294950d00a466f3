"""Callbacks: subclasses of CallbackContract (core.callback_contract), or any class with some of its hooks.

Lightning's callbacks are called as by Lightning (core.lightning_callbacks), or refused (config.lightning.callbacks)."""
