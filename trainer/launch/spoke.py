"""A node other than 0: an agent that does what node 0 says."""

import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from .attempt import POLL_S, Ended
from .hang import Standing
from .line import Line
from .meeting import About, NoMeeting, Rendezvous, exits_as_data
from .signals_heard import Signals

_TRY_AGAIN_S = 0.5


def connected(rendezvous: Rendezvous, signals: Signals) -> socket.socket:
    """A connection to node 0, as soon as it listens.

    Raises:
        NoMeeting: it does not within the time, or a signal came first.
    """
    end = time.monotonic() + rendezvous.wait_s
    while True:
        try:
            return socket.create_connection((rendezvous.host, rendezvous.port), timeout=5)
        except OSError as error:
            said = error.strerror or str(error)
        if signals.told:
            raise NoMeeting("stopped before all nodes had come", signals.exit_code)
        if time.monotonic() > end:
            raise NoMeeting(f"nobody answers at {rendezvous} after {rendezvous.wait_s:g} s: {said}")
        time.sleep(_TRY_AGAIN_S)


class Spoke:
    """Node 0 and whoever is behind it, as another node sees them; see `peers.Peers`."""

    def __init__(self, line: Line, about: About, signals: Signals):
        self.host = "?"
        self._line = line
        self._signals = signals
        self._passed_on = 0
        self._inbox: list[dict[str, Any]] = []
        self._failing = self._over = False
        self._told_still = False
        self._everybody: Sequence[Standing] | None = None
        line.say(say="hello", about=vars(about))

    @property
    def gone(self) -> bool:
        return self._line.gone

    def wait_for(self, *kinds: str, patient_s: float = 0.0) -> dict[str, Any]:
        """The next message of one of these kinds, or the end of the run.

        Args:
            patient_s: how long node 0 may be silent, beyond what makes an agent count as gone.

        Raises:
            NoMeeting: node 0 is gone.
        """
        end = time.monotonic() + patient_s
        while True:
            self.look()
            for message in self._inbox:
                if message["say"] in (*kinds, "end"):
                    self._inbox.remove(message)
                    return message
            if self._line.closed or (self.gone and time.monotonic() > end):
                raise NoMeeting(f"node 0 ({self.host}) is gone")
            time.sleep(POLL_S)

    def begin(self) -> None:
        """Forget the attempt before."""
        self._failing = self._over = False
        self._told_still = False
        self._everybody = None

    def look(self) -> None:
        for message in self._line.hear():
            if message["say"] == "signal":
                self._signals.tell(signal.Signals(message["number"]), message["again"])
            elif message["say"] == "failing":
                self._failing = True
            elif message["say"] == "all over":
                self._over = True
            elif message["say"] == "nothing moves":
                self._everybody = [Standing.read(item) for item in message["processes"]]
            else:
                self._inbox.append(message)
        own = self._signals.own
        for index in range(self._passed_on, len(own)):
            self._line.say(say="signal", number=int(own[index]), again=index > 0)
        self._passed_on = len(own)
        self._line.beat()

    def failing(self) -> bool:
        return self._failing or self.gone

    def over(self) -> bool:
        return self._over

    def standing_still(self, here: Sequence[Standing] | None) -> Sequence[Standing] | None:
        if (here is not None) != self._told_still:
            self._told_still = here is not None
            processes = None if here is None else [standing.as_data() for standing in here]
            self._line.say(say="still", processes=processes)
        everybody, self._everybody = self._everybody, None
        if everybody is not None:
            self._told_still = False
        return everybody

    def say_failing(self) -> None:
        self._line.say(say="failing")

    def say_over(self) -> None:
        self._line.say(say="over")

    def say_ended(self, ended: Ended) -> None:
        self._line.say(say="ended", failed=ended.failed, exits=exits_as_data(list(ended.exits)))

    def close(self) -> None:
        self._line.close()
