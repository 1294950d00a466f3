"""Callbacks of a user, with and without the contract."""

from typing import Any

from typing_extensions import override

from leyden.trainer.core.callback_contract import CallbackContract
from leyden.trainer.core.state import RunState


class Fits(CallbackContract):
    @override
    def on_epoch_end(self, state: RunState) -> None: ...

    def on_plateau(self) -> None: ...


class Misspelt(CallbackContract):
    def on_train_epoch_edn(self, state: RunState) -> None: ...


class Plain:
    def on_step_end(self, state: Any) -> None: ...

    def evaluation_weights(self) -> None: ...


class PlainAndMisspelt(Plain):
    def on_step_ends(self, state: Any) -> None: ...

    def state_dcit(self) -> dict[str, Any]:
        return {}
