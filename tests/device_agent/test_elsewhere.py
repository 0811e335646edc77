"""The agent's layers, head and drafters on a device that is not the CPU: the same answers, and what crosses over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import DEMO
from clouds import cloud_here, device_hello, plain, remote_middle
from elsewhere import elsewhere
from llguidance import LLMatcher, LLTokenizer
from oracle import oracle_tokens, prompt_for
from samples import sample
from stand_in import DEVICE, watched
from submodel_conformance import check_submodel
from tiny_models import build_tiny

from device_agent.answering.form import grammar_of
from device_agent.answering.grammar_masks import GrammarMasks
from device_agent.build import build
from device_agent.chain.chain import Chain
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.config import DeviceConfig
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import load_drafters
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.masks import Masks
from service.draft_settings import DraftSettings
from split_model.bans import Bans
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack

CPU = torch.device("cpu")
SPLIT, TOKENS = 2, 12
PROMPT = prompt_for(DEMO, 20)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.9, top_p=0.95, seed=11)
PENALISED = replace(
    SAMPLED,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias={5: 1.0},
    bans=Bans(words=((19,), (264, 265)), ends=(2,), least=6),
)
PARAMS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}
LONG = DraftSettings(draft_length="fixed", draft_threshold=0.0, draft_cap=4, prepare="none", stream_rows="off")
KINDS = ("none", "adapter", "fused", "hybrid", "medusa", "itself")


@asynccontextmanager
async def chain_on(device: torch.device, afar: bool, tail: int = 0) -> AsyncIterator[Chain]:
    """The demo model, its ends on ``device``, and the middle there too or in a cloud server, which has the CPU."""
    compute, checkpoint = Compute(), Checkpoint.open(DEMO)
    parts = DeviceParts.load(checkpoint, SPLIT, tail, torch.float32, device)
    try:
        if not afar:
            held = middle_slice(checkpoint.spec, SPLIT, tail)
            middle = LocalSubmodel(Stack.load(checkpoint, held, torch.float32, device), compute)
            yield Chain(parts, middle, compute, 16)
        else:
            async with (
                cloud_here(DEMO, SPLIT, tail) as cloud,
                remote_middle(cloud.url, device_hello(DEMO, SPLIT, tail)) as remote,
            ):
                yield Chain(parts, remote, compute, 16)
    finally:
        compute.stop()


def way_of(chain: Chain, kind: str, settings: DraftSettings) -> DraftingWay:
    """A drafter of the demo model, loaded where the chain's head is."""
    if kind == "none":
        return plain()
    kind = str(DEMO) if kind == "itself" else kind
    drafters = load_drafters([kind], DEMO / "drafters", Checkpoint.open(DEMO), SPLIT, torch.float32, chain.parts)
    return DraftingWay.of(drafters.get(""), settings)


async def answered(
    chain: Chain,
    way: DraftingWay,
    params: SamplingParams,
    tokens: int = TOKENS,
    top: int | None = None,
    masks: Masks | None = None,
) -> tuple[list[Any], Generation]:
    """The tokens of an answer, with their log-probabilities where ``top`` says so, in a form where there are masks."""
    session = chain.open(len(PROMPT) + tokens, len(PROMPT), 0, way.drafter)
    generation = Generation(session, Chooser(params, PROMPT, params.seed or 0, top, (), tokens, masks), way)
    try:
        return [chosen async for chosen in generation.run()], generation
    finally:
        session.close()


def tokens_of(chosen: Sequence[Any]) -> list[int]:
    return [each.token for each in chosen]


@elsewhere
async def test_local_layers_conform(tiny_folder: Path, device: torch.device) -> None:
    """Whoever hands rows over may have them in the host's memory; what comes back is where the layers are."""
    folder = tiny_folder / "llama"
    if not folder.exists():
        build_tiny("llama", folder)
    checkpoint, compute = Checkpoint.open(folder), Compute()
    held = middle_slice(checkpoint.spec, 1, 1)
    there = LocalSubmodel(Stack.load(checkpoint, held, torch.float32, device), compute)
    await check_submodel(_Fetching(there), Stack.load(checkpoint, held, torch.float32))
    compute.stop()


class _Fetching:
    """A submodel, or a session of one, whose rows are fetched to be compared."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("branching", "reading"):
            return None if found is None else _Fetching(found)
        if name in ("open", "fork"):
            return lambda *given, **named: _Fetching(found(*given, **named))
        if name in ("forward", "forward_nodes", "read"):
            return lambda *given, **named: _fetched(found(*given, **named))
        return found


async def _fetched(rows: Any) -> torch.Tensor:
    found: torch.Tensor = (await rows).cpu()
    return found


@elsewhere
@pytest.mark.parametrize(
    ("kind", "where"),
    sample(product(KINDS, ("here", "afar")), "none-here hybrid-afar medusa-afar"),
)
async def test_answers_are_those_of_the_cpu(kind: str, where: str, device: torch.device) -> None:
    """Plain and drafted, greedy (then they are transformers') and sampled, with drafts prepared for all verdicts."""
    greedy = oracle_tokens(DEMO, PROMPT, TOKENS)
    async with chain_on(CPU, afar=False) as chain:
        sampled, _ = await answered(chain, plain(), SAMPLED)
        penalised, _ = await answered(chain, plain(), PENALISED)
    async with chain_on(device, where == "afar") as chain:
        assert chain.parts.head.device == device
        way = way_of(chain, kind, DraftSettings(draft_length="fixed", draft_threshold=0.3, draft_cap=4))
        assert tokens_of((await answered(chain, way, GREEDY))[0]) == greedy
        assert tokens_of((await answered(chain, way, SAMPLED))[0]) == tokens_of(sampled)
        assert tokens_of((await answered(chain, way, PENALISED))[0]) == tokens_of(penalised)


@elsewhere
async def test_layers_behind_the_cloud_and_penalties(device: torch.device) -> None:
    """With a last layer here too; penalties, biases and log-probabilities are computed where the logits are."""
    params = SamplingParams(repetition_penalty=1.2, presence_penalty=0.3, logit_bias={5: 1.0})
    found = []
    for place in (CPU, device):
        async with chain_on(place, afar=True, tail=1) as chain:
            assert tokens_of((await answered(chain, plain(), GREEDY))[0]) == oracle_tokens(DEMO, PROMPT, TOKENS)
            found.append((await answered(chain, way_of(chain, "fused", LONG), params, top=2))[0])
    assert tokens_of(found[1]) == tokens_of(found[0])
    for there, here in zip(found[1], found[0], strict=True):
        assert there.logprob == pytest.approx(here.logprob, abs=1e-3)
        assert [token for token, _ in there.top] == [token for token, _ in here.top]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("afar", [False, True], ids=["here", "afar"])
async def test_a_plain_round_crosses_once(afar: bool, params: SamplingParams) -> None:
    """The token, and where the middle is elsewhere its row beside it."""
    async with chain_on(DEVICE, afar) as chain:
        crossed = []
        for tokens in (6, 16):
            with watched() as seen:
                await answered(chain, plain(), params, tokens)
            crossed.append(len(seen.to_host))
    assert crossed[1] - crossed[0] == 10


@pytest.mark.parametrize(
    ("kind", "params"),
    sample(
        product(("adapter", "fused", "lookup", "hybrid", "itself"), PARAMS),
        "adapter-sampled hybrid-penalised itself-greedy",
    ),
)
async def test_a_drafted_rounds_rows_cross_once(kind: str, params: str) -> None:
    """Once the verdict, which is not to wait for the draft, and once the draft with all its rows, whoever drafts, and
    where penalties look back at drafted tokens that the host does not know."""
    async with chain_on(DEVICE, afar=True) as chain:
        left = []
        for tokens in (6, 26):
            way = way_of(chain, kind, LONG)
            with watched() as seen:
                _, generation = await answered(chain, way, PARAMS[params], tokens)
            tally = generation.tally
            assert kind == "lookup" or tally.proposed > tally.rounds
            left.append(len(seen.to_host) - 2 * tally.rounds)
    assert left[1] == left[0]


@pytest.mark.parametrize(
    ("kind", "rule"),
    sample(
        product(("fused", "lookup", "itself"), ("rejection", "block")),
        "lookup-block itself-rejection",
    ),
)
async def test_a_verdict_on_drawn_tokens_crosses_once(kind: str, rule: Any) -> None:
    """Under the rules that judge token by token, too: a round crosses twice, however many are judged or stay."""
    async with chain_on(DEVICE, afar=True) as chain:
        left = []
        for tokens in (6, 26):
            way = way_of(chain, kind, replace(LONG, verify=rule))
            with watched() as seen:
                _, generation = await answered(chain, way, PENALISED, tokens)
            tally = generation.tally
            assert kind == "lookup" or tally.proposed > tally.rounds
            left.append(len(seen.to_host) - 2 * tally.rounds)
    assert left[1] == left[0]


async def test_the_crossings_of_a_tree_are_its_levels() -> None:
    """Of Medusa's: the candidates of each level, the verdict, and the rows; however many nodes there are."""
    async with chain_on(DEVICE, afar=True) as chain:
        left = []
        for tokens in (6, 26):
            way = way_of(chain, "medusa", LONG)
            with watched() as seen:
                _, generation = await answered(chain, way, GREEDY, tokens)
            left.append((len(seen.to_host), generation.tally.rounds))
        levels = len(_levels(chain))
        (few, rounds), (many, more) = left
        assert many - few <= (more - rounds) * (2 + levels)


def _levels(chain: Chain) -> Sequence[Any]:
    """Of a tree of Medusa's, one a head."""
    drafter: Any = way_of(chain, "medusa", LONG).drafter
    return list(drafter._heads)


@elsewhere
@pytest.mark.parametrize(
    ("rule", "params", "kind"),
    sample(
        product(("keyed", "rejection", "block"), ("sampled", "penalised"), ("adapter", "lookup", "itself")),
        "keyed-sampled-adapter rejection-penalised-lookup block-sampled-lookup",
    ),
)
async def test_drafts_made_at_once_are_those_made_one_by_one(
    rule: Any, params: str, kind: str, device: torch.device
) -> None:
    """Where no token is left out, all rules draft and accept the same, whoever drafts and whatever is penalised."""
    found = []
    for place in (CPU, device):
        async with chain_on(place, afar=False) as chain:
            way = way_of(chain, kind, replace(LONG, verify=rule))
            chosen, generation = await answered(chain, way, PARAMS[params], 30)
            found.append((tokens_of(chosen), generation.tally.proposed, generation.tally.accepted))
    assert found[0] == found[1]


async def test_what_a_draft_is_cut_by_is_forgotten() -> None:
    """Where a threshold cuts what was made, fewer are sent than there were, and the answer stays."""
    async with chain_on(DEVICE, afar=True) as chain:
        way = way_of(chain, "adapter", replace(LONG, draft_threshold=0.9, draft_cap=6))
        chosen, generation = await answered(chain, way, GREEDY, 30)
        assert tokens_of(chosen) == oracle_tokens(DEMO, PROMPT, 30)
        tally = generation.tally
        assert tally.rounds < tally.proposed < 6 * tally.rounds


async def test_an_end_token_ends_a_draft_made_at_once() -> None:
    """It is chosen, and not drafted; nothing behind it is sent."""
    truth = oracle_tokens(DEMO, PROMPT, 20)
    end = next(token for number, token in enumerate(truth) if number > 8 and token not in truth[:number])
    async with chain_on(DEVICE, afar=True) as chain:
        way = way_of(chain, "adapter", LONG)
        session = chain.open(len(PROMPT) + 20, drafter=way.drafter)
        chooser = Chooser(GREEDY, PROMPT, 0, end_ids={end}, max_tokens=20)
        chosen = [each async for each in Generation(session, chooser, way).run()]
        assert tokens_of(chosen) == truth[: truth.index(end) + 1] and chosen[-1].reason == "stop"
        assert session.position == len(PROMPT) + len(chosen) - 1
        session.close()


def form() -> GrammarMasks:
    """Of JSON with some texts in it."""
    known = LLTokenizer((DEMO / "tokenizer.json").read_text(), n_vocab=2048, eos_token=2)
    schema = '{"type":"array","items":{"type":"string","maxLength":9},"minItems":2,"maxItems":3}'
    compiled = partial(LLMatcher, known, grammar_of("json", schema))
    return GrammarMasks(compiled(), compiled, 2048, "form", lambda look: look())


@elsewhere
@pytest.mark.parametrize("kind", sample(["none", "fused", "medusa"], "medusa"))
async def test_a_form_is_held_to_there_as_here(kind: str, device: torch.device) -> None:
    """Chains and trees keep to it, and what is said is what is said without drafts, greedy, sampled and penalised."""
    for params in (GREEDY, PENALISED):
        async with chain_on(CPU, afar=False) as chain:
            wanted, _ = await answered(chain, plain(), params, 60, masks=form())
        assert wanted[-1].reason == "complete"
        for place in (CPU, device):
            async with chain_on(place, afar=place is CPU) as chain:
                found, generation = await answered(chain, way_of(chain, kind, LONG), params, 60, masks=form())
                assert tokens_of(found) == tokens_of(wanted)
                assert kind == "none" or generation.tally.accepted > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_drawn_drafts_keep_to_a_form(rule: Any) -> None:
    """Under the rules that judge token by token: complete, and drafts are accepted."""
    async with chain_on(CPU, afar=False) as chain:
        way = way_of(chain, "fused", replace(LONG, verify=rule))
        found, generation = await answered(chain, way, SAMPLED, 60, masks=form())
        assert found[-1].reason == "complete" and form().ended(tokens_of(found))
        assert generation.tally.accepted > 0


def test_a_device_that_is_not_there() -> None:
    """The agent says so before anything is loaded."""
    with pytest.raises(ValueError, match="--device cuda:99"):
        build(DeviceConfig(model=str(DEMO), device="cuda:99"))
