"""Stage attributes of `self.trainer`: training, validating, testing, sanity_checking."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch.trainer.states import TrainerState


class TrainerStageAttributes:
    """The stage of a run. As in Lightning, setting one to True ends the others, and False ends only itself."""

    state: "TrainerState"

    def _stage(self, stage: str, active: bool) -> None:
        from lightning.pytorch.trainer.states import RunningStage, TrainerFn

        wanted = RunningStage[stage]
        if active:
            self.state.stage = wanted
        elif self.state.stage == wanted:
            self.state.stage = None
        self.state.fn = TrainerFn.TESTING if self.testing else TrainerFn.FITTING

    def _is(self, stage: str) -> bool:
        return self.state.stage is not None and self.state.stage.name == stage

    @property
    def training(self) -> bool:
        return self._is("TRAINING")

    @training.setter
    def training(self, active: bool) -> None:
        self._stage("TRAINING", active)

    @property
    def validating(self) -> bool:
        return self._is("VALIDATING")

    @validating.setter
    def validating(self, active: bool) -> None:
        self._stage("VALIDATING", active)

    @property
    def testing(self) -> bool:
        return self._is("TESTING")

    @testing.setter
    def testing(self, active: bool) -> None:
        self._stage("TESTING", active)

    @property
    def sanity_checking(self) -> bool:
        return self._is("SANITY_CHECKING")

    @sanity_checking.setter
    def sanity_checking(self, active: bool) -> None:
        self._stage("SANITY_CHECKING", active)

    @property
    def predicting(self) -> bool:
        return False

    @property
    def evaluating(self) -> bool:
        return self.validating or self.testing or self.sanity_checking

    @property
    def interrupted(self) -> bool:
        return False
