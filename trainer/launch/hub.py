"""Node 0 of several: the agent that the others connect to, and that decides."""

import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .attempt import POLL_S, Ended, Job
from .hang import Standing
from .line import Line
from .meeting import About, NoMeeting, Rendezvous, disagreement, exits_from_data
from .processes import Exit
from .roles import Place
from .signals_heard import Signals
from .store import AgentStore, Store


@dataclass
class Seat:
    """Another node, as node 0 knows it."""

    number: int
    line: Line | None = None
    about: About | None = None
    gone: str | None = None
    """Who sat here, if that agent has vanished."""
    failing: bool = False
    over: bool = False
    still: Sequence[Standing] | None = None
    """How its processes stand, where none of its workers moves any more."""
    ended: bool = False
    exits: Sequence[Exit] = field(default_factory=list)

    def begin(self) -> None:
        """Forget the attempt before."""
        self.failing = self.over = self.ended = False
        self.still = None
        self.exits = []

    @property
    def name(self) -> str:
        return f"node {self.number} ({self.about.host if self.about else '?'})"


class Hub:
    """The other nodes as node 0 sees them; see `peers.Peers` and `crew.Crew`.

    Args:
        listening: the socket at the rendezvous.
    """

    def __init__(self, about: About, rendezvous: Rendezvous, listening: socket.socket, place: Place, signals: Signals):
        self.about = about
        self.rendezvous = rendezvous
        self.place = place
        self.seats = [Seat(number) for number in range(1, place.nodes)]
        self._signals = signals
        self._passed_on = 0
        self._listening = listening
        self._listening.setblocking(False)
        self._arriving: list[Line] = []
        self._own_over = self._told_over = self._told_failing = False
        self.begun = False
        """Whether there has been an attempt."""

    def begin(self, number: int, job: Job, why: str) -> tuple[Place, Store]:
        """Wait until every seat is taken, and have all nodes start an attempt.

        Raises:
            NoMeeting: not everybody came, they do not agree, or a signal came first.
        """
        try:
            self._gather()
        except NoMeeting as error:
            self.conclude(error.code, str(error))
            raise
        self.begun = True
        self._own_over = self._told_over = self._told_failing = False
        store = AgentStore(self.rendezvous.host)
        for seat in self.seats:
            seat.begin()
            assert seat.line is not None
            checkpoint = str(job.checkpoint or "")
            seat.line.say(say="start", number=number, verb=job.verb, checkpoint=checkpoint, port=store.port, why=why)
        return self.place, store

    def _gather(self) -> None:
        end = time.monotonic() + self.rendezvous.wait_s
        if self.begun and any(seat.gone for seat in self.seats):
            lost = ", ".join(seat.gone for seat in self.seats if seat.gone)
            again = f"waits {self.rendezvous.wait_s:g} s for another agent: leyden node --rendezvous {self.rendezvous}"
            print(f"{lost}: {again}", flush=True)
        while any(seat.line is None for seat in self.seats):
            self._welcome_arriving()
            self.look()
            if self._signals.told:
                raise NoMeeting("stopped before all nodes had come", self._signals.exit_code)
            if time.monotonic() > end:
                here = 1 + sum(seat.line is not None for seat in self.seats)
                raise NoMeeting(
                    f"{here} of {self.place.nodes} nodes came to {self.rendezvous} within {self.rendezvous.wait_s:g} s"
                )
            time.sleep(POLL_S)
        different = disagreement([self.about, *(seat.about for seat in self.seats if seat.about)])
        if different:
            raise NoMeeting(different, code=3)

    def _welcome_arriving(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                break
            self._arriving.append(Line(connection))
        for line in list(self._arriving):
            messages = line.hear()
            if messages:
                self._arriving.remove(line)
                self._welcome(line, messages)
            elif line.gone:
                self._arriving.remove(line)
                line.close()

    def _welcome(self, line: Line, messages: list[dict[str, Any]]) -> None:
        hello, *further = messages
        about = About.read(hello.get("about"))
        seat = next((seat for seat in self.seats if seat.line is None), None)
        if hello["say"] != "hello" or about is None:
            line.close()
        elif seat is None:
            line.say(say="end", code=1, text=f"the run has its {self.place.nodes} nodes already", mistake=False)
            line.finish()
        else:
            seat.line, seat.about, seat.gone = line, about, None
            line.say(say="welcome", node=seat.number, host=self.about.host)
            for message in further:
                self._heard(seat, message)

    def look(self) -> None:
        """Hear everybody, say what is new."""
        for seat in self.seats:
            if seat.line is not None:
                for message in seat.line.hear():
                    self._heard(seat, message)
                if seat.line.gone:
                    seat.line.close()
                    seat.line, seat.gone = None, seat.name
        own = self._signals.own
        for index in range(self._passed_on, len(own)):
            self._say(say="signal", number=int(own[index]), again=index > 0)
        self._passed_on = len(own)
        if self.failing() and not self._told_failing:
            self.say_failing()
        if self._own_over and self.over() and not self._told_over:
            self._told_over = True
            self._say(say="all over")
        for seat in self.seats:
            if seat.line is not None:
                seat.line.beat()
        if all(seat.line is not None for seat in self.seats):
            self._welcome_arriving()  # too many: told so at once

    def _heard(self, seat: Seat, message: dict[str, Any]) -> None:
        said = message["say"]
        if said == "failing":
            seat.failing = True
        elif said == "over":
            seat.over = True
        elif said == "still":
            data = message["processes"]
            seat.still = None if data is None else [Standing.read(item) for item in data]
        elif said == "ended":
            assert seat.line is not None
            seat.ended, seat.failing = True, seat.failing or message["failed"]
            seat.exits = exits_from_data(message["exits"], seat.line.clock_ahead)
        elif said == "signal":
            self._signals.tell(signal.Signals(message["number"]), message["again"])
            for other in self.seats:
                if other is not seat and other.line is not None:
                    other.line.say(say="signal", number=message["number"], again=message["again"])

    def _say(self, **message: Any) -> None:
        for seat in self.seats:
            if seat.line is not None:
                seat.line.say(**message)

    def failing(self) -> bool:
        return any(seat.failing or (seat.gone and not seat.ended) for seat in self.seats)

    def over(self) -> bool:
        return all(seat.over for seat in self.seats)

    def say_failing(self) -> None:
        self._told_failing = True
        self._say(say="failing")

    def say_over(self) -> None:
        self._own_over = True

    def standing_still(self, here: Sequence[Standing] | None) -> Sequence[Standing] | None:
        if here is None or any(seat.still is None for seat in self.seats):
            return None
        everybody = [*here, *(standing for seat in self.seats for standing in seat.still or ())]
        self._say(say="nothing moves", processes=[standing.as_data() for standing in everybody])
        for seat in self.seats:
            seat.still = None
        return everybody

    def gathered(self, ended: Ended) -> Ended:
        """How the attempt ended on all nodes together."""
        while any(seat.line is not None and not seat.ended for seat in self.seats):
            self.look()
            time.sleep(POLL_S)
        gone = next((f"{seat.gone} is gone" for seat in self.seats if seat.gone and not seat.ended), None)
        exits = [*ended.exits, *(exit for seat in self.seats for exit in seat.exits)]
        return replace(ended, failed=ended.failed or self.failing(), exits=exits, gone=gone)

    def conclude(self, code: int, text: str = "", mistake: bool = False) -> None:
        """Tell everybody how the run has ended."""
        self._listening.close()
        lines = [seat.line for seat in self.seats if seat.line is not None]
        for line in lines:
            line.say(say="end", code=code, text=text, mistake=mistake)
        for line in lines:
            line.finish()
