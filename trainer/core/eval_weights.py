"""The weights that are evaluated, in place of those that are trained."""

from typing import Any

from .callback_contract import CallbackContract
from .state import RunState


class EvalWeights:
    """Context with the weights that strategy and callbacks (an EMA, say) choose for evaluation."""

    def __init__(self, state: RunState):
        self._contexts = [state.contract.eval_weights(state.task)]
        self._contexts += [evaluated(state) for evaluated in state.callback_hooks(CallbackContract.evaluated)]

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)
