"""What the rounds of one agent cost: seconds of a verification by its rows, and of a step of drafting. Pure.

A verification of n rows is taken to last ``round_s + (n - 1) row_s``. Both are learned from every verification by least
squares whose past fades. What is known already anchors them, so that drafts that are all as long leave the two apart.
Where verifications take far longer than that, or far shorter, again and again, what was known is of other machines: it
begins anew. So it is where weights are read from a disk for each of them: a second instead of milliseconds.
"""

from __future__ import annotations

from split_model.hints import Pace

MEMORY = 0.97
"""Weight of the past: 33 verifications count."""

ANCHOR = 0.5
"""Verifications that what is known already is worth, and the rest of its weight: how slowly it follows."""

ROWS = 8.0
"""What a row costs is known as well as what so many of them do: else one round that took a little longer would be taken
for the price of its rows."""

ANCHOR_MEMORY = 0.98

CLIP = 4.0
"""An error over this many times the usual one is taken for that many: a queue, not a cost."""

USUAL = (0.25, 0.01)
"""The usual error as a share of the expectation, at first and at least."""

LEAST_S = 1e-6
"""Nothing is taken to last less."""

LEAP, LEAPS = 2.0, 2
"""So many times as long, or as short, as expected, so many times in a row: not noise any more."""

ALPHA = 0.9
"""Weight of the past in the moving means of errors, of drafting steps and of waiting."""


class RoundCosts:
    """Learns from what rounds take.

    Args:
        prior_round_s: seconds of a verification of one row, before any is measured; over 0.
        prior_row_s: the same of each further row; 0 or more.
    """

    def __init__(self, prior_round_s: float, prior_row_s: float) -> None:
        assert prior_round_s > 0 and prior_row_s >= 0
        self._round_s = self._anchor_round_s = prior_round_s
        self._row_s = self._anchor_row_s = prior_row_s
        self._usual = USUAL[0]
        # Fading sums over verifications of 1, x, x x, y and x y, where x is the rows but one, y the seconds.
        self._sums = [0.0] * 5
        self._far: list[tuple[int, float]] = []
        """The last verifications, by rows but one and seconds, that were all far above what was expected, or below."""
        self._draft_s: float | None = None
        self.link_row_s = 0.0
        self._step_s: float | None = None

    @property
    def round_s(self) -> float:
        """Seconds of a verification of one row: all that happens once a round."""
        return self._round_s

    @property
    def row_s(self) -> float:
        """Seconds of each further row; the link alone takes ``link_row_s``."""
        return max(self._row_s, self.link_row_s)

    @property
    def draft_s(self) -> float:
        """Seconds of a step of drafting, 0 while none was measured."""
        return self._draft_s or 0.0

    @property
    def one_by_one(self) -> bool:
        """Whether a row takes longer to make, or to send, than a step of the cloud: then rows that are sent as they are
        made arrive no more apart than the cloud keeps up with; else they would only be torn into more steps."""
        return self._step_s is not None and max(self.draft_s, self.link_row_s) >= self._step_s

    def link(self, row_bytes: int, pace: Pace) -> None:
        """What a row weighs each way, and how fast the way to the other layers is: no row takes less."""
        self.link_row_s = sum(row_bytes / each for each in (pace.up_bytes_s, pace.down_bytes_s) if each)
        self._step_s = pace.step_s

    def verified(self, rows: int, seconds: float) -> None:
        """A verification of ``rows`` took ``seconds``, from when the last was sent to when the answer came."""
        assert rows > 0 and seconds >= 0
        x = rows - 1
        if self._far and self._side(*self._far[0]) != self._side(x, seconds):
            self._learn(*self._far.pop())
        if not self._side(x, seconds):
            self._learn(x, seconds)
            return
        self._far.append((x, seconds))
        if len(self._far) >= LEAPS:
            self._begin_anew()

    def _side(self, x: int, seconds: float) -> int:
        """Whether a verification took far longer (1) or shorter (-1) than expected, or neither (0)."""
        expected = self._round_s + x * self._row_s
        return (seconds > LEAP * expected) - (LEAP * seconds < expected)

    def _begin_anew(self) -> None:
        """Only what is far counts. Whether it is for the rows nobody knows yet: each costs what it did, or where all is
        faster its share of that."""
        count, xs, seconds = len(self._far), sum(x for x, _ in self._far), sum(each for _, each in self._far)
        self._row_s *= min(1.0, seconds / (count * self._round_s + xs * self._row_s))
        self._anchor_row_s = self._row_s
        self._round_s = self._anchor_round_s = max((seconds - xs * self._row_s) / count, LEAST_S)
        self._sums, self._usual = [0.0] * 5, USUAL[0]
        far, self._far = self._far, []
        for x, each in far:
            self._learn(x, each)

    def _learn(self, x: int, seconds: float) -> None:
        expected = self._round_s + x * self._row_s
        error = seconds - expected
        most = CLIP * self._usual * expected
        error = min(max(error, -most), most)
        self._usual = max(ALPHA * self._usual + (1 - ALPHA) * abs(error) / expected, USUAL[1])
        y = expected + error
        self._sums = [MEMORY * past + new for past, new in zip(self._sums, (1, x, x * x, y, x * y), strict=True)]
        self._solve()

    def drafted(self, seconds: float, steps: int = 1) -> None:
        """``steps`` of drafting took ``seconds``."""
        each = seconds / steps
        if self._draft_s is None:
            self._draft_s = each
        self._draft_s = ALPHA * self._draft_s + (1 - ALPHA) * min(each, CLIP * self._draft_s)

    def steps_while_waiting(self, rows: int) -> int:
        """HAT Eq. 6: how many steps of drafting fit into the wait for a verification of ``rows``.

        The paper adds upload, cloud and download; here they were measured together. 0 while no step was measured.
        """
        if not self._draft_s:
            return 0
        return int((self.round_s + (rows - 1) * self.row_s) / self._draft_s)

    def _solve(self) -> None:
        """Least squares of the sums and the anchor; then the anchor follows."""
        count, x, xx, y, xy = self._sums
        of_rows = ANCHOR * ROWS * ROWS
        count, xx = count + ANCHOR, xx + of_rows
        y, xy = y + ANCHOR * self._anchor_round_s, xy + of_rows * self._anchor_row_s
        below = count * xx - x * x  # over 0: the anchor sees to it
        row_s = max((count * xy - x * y) / below, 0.0)
        round_s = (y - x * row_s) / count
        # Both are times: where noise says otherwise, what is left explains all.
        floor = 0.01 * y / count
        self._round_s, self._row_s = max(round_s, floor), row_s
        self._anchor_round_s = ANCHOR_MEMORY * self._anchor_round_s + (1 - ANCHOR_MEMORY) * self._round_s
        self._anchor_row_s = ANCHOR_MEMORY * self._anchor_row_s + (1 - ANCHOR_MEMORY) * self._row_s
