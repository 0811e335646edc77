"""From logits to a token: one pipeline to probabilities, and a draw that depends on nothing but seed and position.

The order is the one common to vLLM and transformers: bias, repetition, presence and frequency penalties, bans,
temperature, top-k, top-p, min-p. Verification of drafts works on what comes out, the same for draft and target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy
import torch
from numpy.typing import NDArray

from split_model.bans import Bans
from split_model.device import on_host, put

MAX_SEED = (1 << 64) - 1
NOBODY = -1  # in place of an id that cannot be drawn
LEAST_REPETITION = 0.01  # logits are divided by it, and must stay what a float32 holds
COLDEST = 1e-30  # below this a temperature changes nothing any more


class BadSampling(ValueError):
    """A sampling parameter is out of its range; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. The defaults change nothing but the temperature: 0 is greedy."""

    temperature: float = 0.0  # 0 or more; 0: the most likely token
    top_p: float = 1.0  # over 0, at most 1; 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0 to 1, a share of the highest probability; 0: off
    presence_penalty: float = 0.0  # taken off the logit of each token generated already
    frequency_penalty: float = 0.0  # the same for each time it was generated
    repetition_penalty: float = 1.0  # from 0.01; divides the positive logits of tokens in prompt or text; 1: off
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    seed: int | None = None  # 0 to 2^64 - 1
    bans: Bans | None = None

    def __post_init__(self) -> None:
        """Raises BadSampling."""
        _check_number("temperature", self.temperature, 0, 100)
        _check_number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise BadSampling("top_p", "is 0; it must be over 0 (use temperature 0 for greedy)")
        if type(self.top_k) is not int or self.top_k < 0:
            raise BadSampling("top_k", f"is {self.top_k!r}; it must be a whole number from 0, which is off")
        _check_number("min_p", self.min_p, 0, 1)
        _check_number("presence_penalty", self.presence_penalty, -100, 100)
        _check_number("frequency_penalty", self.frequency_penalty, -100, 100)
        _check_number("repetition_penalty", self.repetition_penalty, LEAST_REPETITION, 100)
        if not isinstance(self.logit_bias, Mapping):
            raise BadSampling("logit_bias", f"is {self.logit_bias!r}; it must map token ids to numbers")
        for token_id, bias in self.logit_bias.items():
            if type(token_id) is not int or token_id < 0:
                raise BadSampling("logit_bias", f"has the key {token_id!r}; keys are token ids")
            _check_number("logit_bias", bias, -1000, 1000)
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed <= MAX_SEED):
            raise BadSampling("seed", f"is {self.seed!r}; it must be a whole number from 0 to 2^64 - 1")
        # A copy: the caller's mapping may change later, these parameters must not.
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


@torch.inference_mode()
def probabilities(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    generated_ids: Sequence[int] = (),
    further: torch.Tensor | None = None,
) -> torch.Tensor:
    """logits float32 [vocab] of the next position -> probabilities float32 [vocab] to draw from.

    `prompt_ids`, `generated_ids` and `further` are what came before, for the penalties, as of `penalised`. Greedy gives
    1 to the highest logit after bias, penalties and bans, the lowest id among equals, and 0 to the rest.
    Raises BadSampling where `logit_bias` names an id outside the vocabulary.
    """
    warped = penalised(logits, params, prompt_ids, generated_ids, further)
    if params.is_greedy:
        return torch.zeros_like(warped).scatter_(0, warped.argmax(0, keepdim=True), 1.0)
    # Less the highest, and by no less than the coldest, or it would leave what a float32 holds.
    warped = (warped - warped.max()) / max(params.temperature, COLDEST)
    if 0 < params.top_k < len(warped):
        # Tokens as likely as the k-th stay in.
        warped = warped.masked_fill(warped < warped.topk(params.top_k).values[-1], -math.inf)
    if params.top_p < 1:
        warped = _keep_top_p(warped, params.top_p)
    chances = warped.softmax(0)
    if params.min_p > 0:
        chances = chances.masked_fill(chances < params.min_p * chances.max(), 0.0)
        chances /= chances.sum()
    return chances


def penalised(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    generated_ids: Sequence[int],
    further: torch.Tensor | None = None,
) -> torch.Tensor:
    """The logits after bias, penalties and bans, float32 [vocab]; `logits` itself, unchanged, where there are none.

    further: generated behind `generated_ids`, int64 [tokens] where the logits are, which is not waited for.
    """
    if params.logit_bias:
        if max(params.logit_bias) >= len(logits):
            raise BadSampling("logit_bias", f"has the key {max(params.logit_bias)}; the vocabulary has {len(logits)}")
        ids = put(torch.tensor(list(params.logit_bias)), logits.device)
        biases = torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype)
        logits = logits.index_add(0, ids, put(biases, logits.device))
    if further is None:
        logits = _penalised_here(logits, params, prompt_ids, generated_ids)
    else:
        logits = _penalised_there(logits, params, prompt_ids, generated_ids, further.clamp(min=0))
    return logits if params.bans is None else params.bans.lift(logits, prompt_ids, generated_ids, further)


def _penalised_here(
    logits: torch.Tensor, params: SamplingParams, prompt_ids: Sequence[int], generated_ids: Sequence[int]
) -> torch.Tensor:
    if params.repetition_penalty != 1 and (prompt_ids or generated_ids):
        seen = put(torch.tensor(sorted({*prompt_ids, *generated_ids})), logits.device)
        found = logits.index_select(0, seen)
        found = torch.where(found < 0, found * params.repetition_penalty, found / params.repetition_penalty)
        logits = logits.index_copy(0, seen, found)
    if (params.presence_penalty or params.frequency_penalty) and generated_ids:
        counts = Counter(generated_ids)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype)
        penalty = params.presence_penalty + params.frequency_penalty * times
        ids = put(torch.tensor(list(counts)), logits.device)
        logits = logits.index_add(0, ids, put(-penalty, logits.device))
    return logits


def _penalised_there(
    logits: torch.Tensor,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    generated_ids: Sequence[int],
    further: torch.Tensor,
) -> torch.Tensor:
    """The same penalties where the host does not know all tokens: over the whole vocabulary, since how many different
    ones there are would have to be waited for."""
    ids = put(torch.tensor(list(generated_ids), dtype=torch.int64), logits.device)
    generated = torch.cat([ids, further])
    times = torch.zeros_like(logits).index_add(0, generated, torch.ones_like(generated, dtype=logits.dtype))
    if params.repetition_penalty != 1:
        before = put(torch.tensor(sorted({*prompt_ids}), dtype=torch.int64), logits.device)
        seen = (times > 0).index_fill(0, before, True)
        found = torch.where(logits < 0, logits * params.repetition_penalty, logits / params.repetition_penalty)
        logits = torch.where(seen, found, logits)
    if params.presence_penalty or params.frequency_penalty:
        penalty = params.presence_penalty + params.frequency_penalty * times
        logits = torch.where(times > 0, logits + -penalty, logits)
    return logits


def picked(
    logits: torch.Tensor, params: SamplingParams, prompt_ids: Sequence[int], generated_ids: Sequence[int], seed: int
) -> torch.Tensor:
    """The token that follows, chosen from logits float32 [vocab] and with the noise of its position: int64 [at most 1],
    as `drawn` gives it, `NOBODY` where all are banned. Its device is not waited for. Raises as `probabilities`."""
    if params.is_greedy:
        warped = penalised(logits, params, prompt_ids, generated_ids)
        ids = warped.argmax(0, keepdim=True)
        return ids.masked_fill(~(warped.take(ids) > -math.inf), NOBODY)  # What is no number is no choice either.
    chances = probabilities(logits, params, prompt_ids, generated_ids)
    return drawn(chances, seed, len(prompt_ids) + len(generated_ids))


def draw(chances: torch.Tensor, seed: int, position: int, stream: tuple[int, int] = (0, 0)) -> int:
    """A token id, drawn from probabilities [vocab] with noise that depends on (seed, position, id) only.

    Each id waits an exponential time at the rate of its probability, and the first to come is drawn: the same
    text results whatever was computed before, in whichever process, and a slightly different distribution
    mostly gives the same token. `position`: the token's own, from 0. `stream`: another one for noise that has to be
    independent of the one that text is drawn with. Equal on every machine. What `chances` sum up to does not matter.
    Raises ValueError where the probabilities are none: all 0, or NaN.
    """
    return ranked(chances, seed, position, 1, stream)[0]


def ranked(chances: torch.Tensor, seed: int, position: int, count: int, stream: tuple[int, int] = (0, 0)) -> list[int]:
    """The token that `draw` gives, and behind it those that would have come next: at most `count` different ids, none
    of probability 0. Raises ValueError as `draw` does."""
    [ids] = on_host(drawn(chances, seed, position, count, stream))
    return checked(ids)


def checked(ids: Sequence[int]) -> list[int]:
    """What `drawn` gave, once it is on the host, without what stands for none. Raises ValueError where nothing is left:
    the probabilities are none."""
    found = [each for each in ids if each != NOBODY]
    if not found:
        raise ValueError("nothing can be drawn: the probabilities are all 0 or not numbers")
    return found


def drawn(
    chances: torch.Tensor, seed: int, position: int, count: int = 1, stream: tuple[int, int] = (0, 0)
) -> torch.Tensor:
    """The ids that `ranked` gives, int64 [at most count], where `chances` are; `NOBODY` stands for those there are not.

    A device that is not the CPU is not waited for: it gets the noise of all ids, as this is computed here, the same for
    every device.
    """
    if not chances.is_cpu:
        noise = put(torch.from_numpy(_waits(_bits(seed, position, len(chances), stream))), chances.device)
        return _soonest(noise, chances, count)
    if not float(chances.sum()) > 0:
        return torch.empty(0, dtype=torch.int64)
    possible = chances.nonzero().squeeze(1)
    if len(possible) == 1:
        return possible
    # Raw bits of all ids first: a token's noise is its place in the stream.
    noise = torch.from_numpy(_waits(_bits(seed, position, len(chances), stream)[possible.numpy()]))
    waits = noise / chances[possible].double()
    first = waits.argmin(0, keepdim=True) if count == 1 else waits.topk(min(count, len(waits)), largest=False).indices
    return possible[first]


def drawn_at(
    chances: torch.Tensor, seed: int, positions: Sequence[int], at: torch.Tensor, stream: tuple[int, int] = (0, 0)
) -> torch.Tensor:
    """The id that `drawn` gives at one of some positions, int64 [1] where `chances` are: at which one, `at`, int64
    without a dimension, says there, and nobody waits to learn it."""
    waits = [torch.from_numpy(_waits(_bits(seed, position, len(chances), stream))) for position in positions]
    noise = put(torch.stack(waits), chances.device).index_select(0, at.reshape(1)).squeeze(0)
    return _soonest(noise, chances, 1)


def _soonest(noise: torch.Tensor, chances: torch.Tensor, count: int) -> torch.Tensor:
    """noise: how long each id waits at the rate 1, float64 [vocab] where `chances` are."""
    waits = (noise / chances.double()).masked_fill_((chances > 0).logical_not_(), math.inf)
    sooner, ids = waits.topk(min(count, len(waits)), largest=False)
    return ids.masked_fill_(sooner.isinf().logical_or_((chances.sum() > 0).logical_not_()), NOBODY)


def noise(seed: int, position: int, stream: tuple[int, int]) -> float:
    """One number from 0 to below 1 that depends on nothing but these."""
    return float(_uniform(_bits(seed, position, 1, stream))[0])


def logprobs(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the raw logits, [..., vocab], before bias, penalties and filters."""
    return logits.float().log_softmax(-1)


def top_logprobs(logits: torch.Tensor, count: int) -> list[tuple[int, float]]:
    """The `count` most likely ids of logits [vocab] with their raw log-probabilities, most likely first."""
    found = logprobs(logits).topk(min(count, len(logits)))
    ids, values = on_host(found.indices, found.values)
    return list(zip(ids, values, strict=True))


def _keep_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """-inf for all but the smallest set of most likely tokens that together reach `top_p`."""
    ordered, ids = logits.sort()
    dropped = ordered.softmax(0).cumsum(0) <= 1 - top_p
    dropped[-1] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter(0, ids, dropped), -math.inf)


def _check_number(name: str, value: object, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]  # a number, as the line above found
        raise BadSampling(name, f"is {value!r}; it must be a number from {least} to {most}")


def _bits(seed: int, position: int, size: int, stream: tuple[int, int]) -> NDArray[numpy.uint64]:
    # Philox is counter-based: (seed, position) is its key, and the high words of its counter keep streams apart.
    key = numpy.array([seed, position], dtype=numpy.uint64)
    counter = numpy.array([0, 0, *stream], dtype=numpy.uint64)
    return numpy.random.Philox(key=key, counter=counter).random_raw(size)


def _waits(bits: NDArray[numpy.uint64]) -> NDArray[numpy.float64]:
    """How long each id waits at the rate 1."""
    return -numpy.log1p(-_uniform(bits))


def _uniform(bits: NDArray[numpy.uint64]) -> NDArray[numpy.float64]:
    uniform: NDArray[numpy.float64] = (bits >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
    return uniform
