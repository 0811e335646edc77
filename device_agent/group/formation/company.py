"""Who is at the rendezvous of a group, as its host needs to know it: by name, and who is free for a place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

import structlog

from device_agent.group.formation.measures import Measures
from device_agent.group.formation.posted import NotFormed
from device_agent.group.formation.roll import Roll
from device_agent.group.messages.notes import Device, Measure, Note, StepsDone, Trial, read, written
from device_agent.sharing.events import set_within
from peers.group import Group, Guest
from peers.rendezvous import Rendezvous
from wire.errors import REFUSALS, Code
from wire.peer_messages import PeerNote

FREE_WITHIN_S: Final = 5.0
"""When a group has ended its members stop computing within it; others are sent away until they have."""

_REFUSED: Final = frozenset(code.value for code in (*REFUSALS, Code.TOO_LITTLE_MEMORY, Code.DISK_FAILED))

log = structlog.get_logger()


class Company:
    """The guests of a rendezvous and what the roll says of them. Belongs on the event loop.

    Args:
        digest, dtype: what those must have who take part.
        measures: of devices; who is not known there is asked to measure itself before it takes part. None: nobody is.

    Attributes:
        done: what members have said that they have computed, the last of each; who reads it takes it out.
        trials: their speeds, the last of each; the same.
        epoch: counts the groups that were opened.
    """

    def __init__(
        self, rendezvous: Rendezvous, roll: Roll, digest: str, dtype: str, measures: Measures | None = None
    ) -> None:
        self.rendezvous = rendezvous
        self.done: dict[str, StepsDone] = {}
        self.trials: dict[str, float] = {}
        self._roll = roll
        self._digest, self._dtype, self._measures = digest, dtype, measures
        self._carded: set[Guest] = set()
        self._asked: set[Guest] = set()
        self._group: Group | None = None
        self.epoch = 0

    @property
    def here(self) -> list[str]:
        """Names of who is there, in the order in which they came."""
        return [guest.name for guest in self.rendezvous.guests if not guest.gone]

    @property
    def measuring(self) -> list[str]:
        """Names of who measures itself."""
        return [guest.name for guest in self._asked if not guest.gone and not self._measured(guest.name)]

    def taking_part(self, working: Sequence[str] = ()) -> tuple[str, ...]:
        """See ``Roll.taking_part``; now, of those who have the model, and are measured."""
        self._carded &= set(self.rendezvous.guests)
        self._asked &= set(self.rendezvous.guests)
        for guest in list(self.rendezvous.guests):
            while guest.notes:
                try:
                    self._heard(guest, read(guest.notes.popleft()))
                except ValueError as error:
                    guest.dismiss(Code.BAD_FRAME, str(error))
        self._hear_refusals()
        there = [guest for guest in self.rendezvous.guests if guest in self._carded and not guest.gone]
        for guest in there:
            if not self._measured(guest.name) and guest not in self._asked:
                self.ask_measure(guest)
        here = [guest.name for guest in there if self._measured(guest.name)]
        return self._roll.taking_part(here, monotonic(), working)

    def without(self, name: str, working: Sequence[str]) -> tuple[str, ...]:
        """Who would take part if somebody of those who are ``working`` were lost."""
        there = [guest.name for guest in self.rendezvous.guests if guest in self._carded and not guest.gone]
        here = [each for each in there if each != name and self._measured(each)]
        return self._roll.taking_part(here, monotonic(), [each for each in working if each != name])

    def ask_measure(self, guest: Guest, again: bool = False) -> None:
        """Have somebody who waits measure itself."""
        self._asked.add(guest)
        guest.tell(PeerNote(written(Measure(self._dtype, again))))

    def measure_again(self, name: str) -> None:
        """A member is not what it was: nobody plans with it until it has measured itself again, as soon as it has
        nothing to compute."""
        guest = self.guest(name)
        if guest is not None and self._measures is not None and self._measures.knows(name):
            self._measures.forget(name)
            self.ask_measure(guest, again=True)
            self.rendezvous.changed.set()

    def have_tried(self, names: Sequence[str]) -> None:
        """Have these members, which wait, try how fast they are; see ``trials``."""
        for name in names:
            guest = self.guest(name)
            if guest is not None and guest.place is None:
                guest.tell(PeerNote(written(Trial())))

    def _measured(self, name: str) -> bool:
        return self._measures is None or self._measures.knows(name)

    def _heard(self, guest: Guest, note: Note) -> None:
        if isinstance(note, StepsDone):
            self.done[guest.name] = note
        elif isinstance(note, Trial):
            self.trials[guest.name] = note.speed
        elif isinstance(note, Device):
            if note.profile.name != guest.name or self._measures is None:
                raise ValueError(f"{guest.name} has measured what nobody asked for")
            self._measures.device(note.profile)
        elif isinstance(note, Measure):
            raise ValueError(f"{guest.name} asks its portal to measure itself")
        elif note.digest != self._digest:
            self._refuse(guest, Code.DIGEST_MISMATCH, "its weights are not the portal's: use the same revision of them")
        elif note.dtype not in ("", self._dtype):
            self._refuse(guest, Code.DTYPE_MISMATCH, f"it computes in {note.dtype}, the group in {self._dtype}")
        else:
            self._roll.came(guest.name)
            self._carded.add(guest)
            self.have_tried([guest.name])
            log.info("a member is there", name=guest.name)

    def _refuse(self, guest: Guest, code: Code, why: str) -> None:
        self._roll.refuses(guest.name, why)
        log.error("a member cannot take part", name=guest.name, why=why)
        guest.dismiss(code, f"{guest.name} cannot take part: {why}")

    def guest(self, name: str) -> Guest | None:
        """Who has this name, where somebody is there."""
        return next((guest for guest in self.rendezvous.guests if guest.name == name and not guest.gone), None)

    async def changed(self, within_s: float) -> None:
        """Wait until somebody has come, gone, become free or sent a note, or may come back."""
        now = monotonic()
        again = self._roll.next_change(now)
        wait_s = within_s if again is None else min(within_s, again - now)
        await set_within(self.rendezvous.changed, wait_s)
        self.rendezvous.changed.clear()

    async def freed(self) -> None:
        """Wait until all who are there are free for a place; who computes on is sent away."""
        deadline = monotonic() + FREE_WITHIN_S
        while busy := [guest for guest in self.rendezvous.guests if guest.place is not None]:
            if monotonic() > deadline:
                for guest in busy:
                    guest.dismiss(Code.TIMEOUT, f"{guest.name} has not ended within {FREE_WITHIN_S:g} s")
            await self.changed(deadline + 1.0 - monotonic())

    def open(self, plans: Mapping[int, bytes], names: Mapping[int, str]) -> Group:
        """The next epoch of the group, see ``Rendezvous.open``; all of ``names`` must be free. Raises ``NotFormed``
        where one has gone meanwhile."""
        self.epoch += 1
        self._group = group = self.rendezvous.open(self.epoch, plans, names)
        if group.missing:
            why = f"{', '.join(names[rank] for rank in group.missing)} went before it began"
            group.end(why)
            raise NotFormed(why, ())
        return group

    def blame(self, why: str) -> str | None:
        """The group has ended: whose fault it was counts against it, and it is sent away where it still computes.

        Returns its name; None: nobody's in particular.
        """
        self._hear_refusals()
        group = self._group
        name = None if group is None else group.names.get(group.blamed)
        if name is None or self._roll.has_refused(name):
            return name
        self._roll.failed(name, why, monotonic())
        guest = self.guest(name)
        if guest is not None and guest.place is not None and guest.place[0] is group:
            guest.dismiss(Code.LOST, why)
        return name

    def _hear_refusals(self) -> None:
        """Who has left the group because it cannot do its part is planned without."""
        group = self._group
        for rank, said in list(group.left.items()) if group is not None else []:
            if group is not None and said.code in _REFUSED and not self._roll.has_refused(group.names[rank]):
                name = group.names[rank]
                self._roll.failed(name, said.why, monotonic())  # Something may start it again each time that it ends.
                self._roll.refuses(name, said.why)
                if said.code == Code.TOO_LITTLE_MEMORY.value and self._measures is not None:
                    self._measures.forget(name)  # It does not have what was measured.
                log.error("a member cannot take part", name=name, why=said.why)
                del group.left[rank]
