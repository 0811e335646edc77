"""Scores of heads, found again for heads that look like earlier ones (section 3.3 and C.1 of the EdgeFormer paper).

What is kept are statistics of texts: means of queries and keys tell something of what was read, and whether a score is
reused shows in time. So each tenant has a store of its own, and nothing is found across tenants. Nothing is written to
disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from split_model.pruning.features import Features, Numbers

Far = Callable[[Numbers, Numbers], Numbers]
"""Rows [n, size] and one row, to how far each is from it, [n]."""

ZETA, TAU = 0.6, 0.6
"""How much the second feature counts beside the first; how far apart heads may be to share a score (the paper's)."""

MOST_HEADS = 2048
"""Heads of a store, each of some hundred numbers; behind it the oldest are forgotten."""

MOST_TENANTS = 64
"""Tenants whose heads are kept; who comes back after so many others begins anew."""


class ImportanceStore:
    """Raw scores (Eq. 13) of one tenant's heads by what they looked like, in clusters. For one thread at a time."""

    def __init__(self, zeta: float = ZETA, tau: float = TAU, most: int = MOST_HEADS) -> None:
        """zeta: of Eq. 17. tau: reuse up to this distance; below 0: never."""
        self._zeta, self._tau, self._most = zeta, tau, most
        self._looks = _Looks()
        self._scores: list[float] = []
        self._cluster: list[int] = []
        self._centres = _Looks()
        self._new = 0

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def clusters(self) -> int:
        """How many there are."""
        return len(self._centres)

    @property
    def is_stale(self) -> bool:
        """Whether heads came since the clusters were made."""
        return self._new > 0

    def find(self, heads: Features) -> list[float | None]:
        """Of each head the score of the most like it in its cluster (Eq. 16), None where that is too far."""
        return [self._find(*each) for each in zip(heads.apart, heads.together, strict=True)]

    def add(self, heads: Features, scores: list[float | None]) -> None:
        """Heads that were scored anew, None where they were not: each joins the cluster next to it, or begins one."""
        for apart, together, score in zip(heads.apart, heads.together, scores, strict=True):
            if score is None:
                continue
            cluster = self._nearest(apart, together)
            if cluster is None:
                cluster = len(self._centres)
                self._centres.add(apart, together)
            self._looks.add(apart, together)
            self._scores.append(score)
            self._cluster.append(cluster)
            self._new += 1
        over = len(self) - self._most
        if over > 0:
            self._looks.forget(over)
            del self._scores[:over], self._cluster[:over]
            self.recluster()

    def recluster(self) -> None:
        """Makes all clusters anew, when there is time: in two folds, by the first feature and within that by the
        second. Within a cluster each is within half of tau of who began it, in both."""
        self._centres, self._cluster, self._new = _Looks(), [0] * len(self), 0
        apart, together = self._looks.apart, self._looks.together
        for coarse in _leaders(apart, list(range(len(self))), self._tau / 2, _distance):
            reach = self._tau / 2 / max(self._zeta, 1e-9)
            for members in _leaders(together, coarse, reach, _unlikeness):
                for member in members:
                    self._cluster[member] = len(self._centres)
                self._centres.add(apart[members].mean(0), together[members].mean(0))

    def _find(self, apart: Numbers, together: Numbers) -> float | None:
        cluster = self._nearest(apart, together)
        members = [] if cluster is None else [at for at, held in enumerate(self._cluster) if held == cluster]
        if not members:
            return None
        found = self._distances(apart, together, self._looks.apart[members], self._looks.together[members])
        best = int(found.argmin())
        return self._scores[members[best]] if found[best] <= self._tau else None

    def _nearest(self, apart: Numbers, together: Numbers) -> int | None:
        """The cluster whose centre is next, if any is within tau."""
        if not self.clusters:
            return None
        found = self._distances(apart, together, self._centres.apart, self._centres.together)
        best = int(found.argmin())
        return best if found[best] <= self._tau else None

    def _distances(self, apart: Numbers, together: Numbers, firsts: Numbers, seconds: Numbers) -> Numbers:
        """Eq. 17 to each of some others."""
        found: Numbers = np.linalg.norm(firsts - apart, axis=1) + self._zeta * _unlikeness(seconds, together)
        return found


class _Looks:
    """What heads look like, in two arrays with room at their ends: each look at them goes over all at once."""

    def __init__(self) -> None:
        self._apart = self._together = np.empty((0, 0), np.float32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def apart(self) -> Numbers:
        """[heads, 2 * head_dim]"""
        return self._apart[: self._count]

    @property
    def together(self) -> Numbers:
        """[heads, LENGTH]"""
        return self._together[: self._count]

    def add(self, apart: Numbers, together: Numbers) -> None:
        """One more."""
        if self._count == len(self._apart):
            self._apart = _with_room(self.apart, len(apart))
            self._together = _with_room(self.together, len(together))
        self._apart[self._count], self._together[self._count] = apart, together
        self._count += 1

    def forget(self, count: int) -> None:
        """The oldest."""
        self._apart, self._together = self.apart[count:].copy(), self.together[count:].copy()
        self._count = len(self._apart)


class TenantStores:
    """A store for each tenant, those used last."""

    def __init__(self, zeta: float = ZETA, tau: float = TAU, most: int = MOST_TENANTS) -> None:
        self._zeta, self._tau, self._most = zeta, tau, most
        self._stores: OrderedDict[str, ImportanceStore] = OrderedDict()

    def of(self, tenant: str) -> ImportanceStore:
        """This tenant's own."""
        store = self._stores.setdefault(tenant, ImportanceStore(self._zeta, self._tau))
        self._stores.move_to_end(tenant)
        if len(self._stores) > self._most:
            self._stores.popitem(last=False)
        return store

    def recluster(self) -> None:
        """Makes one tenant's clusters anew, where heads came since they were made: whoever asks may have to wait."""
        stale = next((store for store in self._stores.values() if store.is_stale), None)
        if stale is not None:
            stale.recluster()


def _with_room(rows: Numbers, size: int) -> Numbers:
    """Rows with as many free ones behind them, and some."""
    found = np.empty((2 * len(rows) + 16, size), np.float32)
    if len(rows):
        found[: len(rows)] = rows
    return found


def _distance(rows: Numbers, row: Numbers) -> Numbers:
    found: Numbers = np.linalg.norm(rows - row, axis=1)
    return found


def _unlikeness(rows: Numbers, row: Numbers) -> Numbers:
    """1 - cos."""
    sizes = np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
    found: Numbers = 1 - rows @ row / np.maximum(sizes, 1e-12)
    return found


def _leaders(rows: Numbers, members: list[int], reach: float, far: Far) -> list[list[int]]:
    """Members in groups: each joins the nearest of those that began one, if within reach, or begins one."""
    found: list[list[int]] = []
    began = np.empty((len(members), rows.shape[1]), np.float32)
    for member in members:
        if found:
            distances = far(began[: len(found)], rows[member])
            best = int(distances.argmin())
            if distances[best] <= reach:
                found[best].append(member)
                continue
        began[len(found)] = rows[member]
        found.append([member])
    return found
