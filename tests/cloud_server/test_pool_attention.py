"""Every attention backend that can run here, and steps over pages against steps over contiguous caches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from attention_conformance import CASES, by_formula, check_case
from samples import sample
from tiny_models import TINY_NAMES, build_tiny

from cloud_server.cache.attention_cuda import Lengths, VarlenBackend
from cloud_server.cache.batch import PagedBatch
from cloud_server.cache.pool import KVPool
from cloud_server.cache.pool_attention import (
    BACKENDS,
    Backend,
    BackendMissing,
    LinesBackend,
    SdpaBackend,
    choose_backend,
)
from cloud_server.cache.span import PagedSpan
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.stack import Span, Stack
from split_model.tree import Tree

PAGE = 4


def described(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
) -> torch.Tensor:
    """A kernel as the documents of the CUDA kernels describe theirs: it holds to account what they are called with."""
    assert window[1] == 0 and lengths.rows.dtype == lengths.positions.dtype == lengths.used.dtype == torch.int32
    rows, positions = lengths.rows.diff().tolist(), lengths.positions.diff().tolist()
    assert (lengths.most_rows, lengths.most_positions) == (max(rows), max(positions))
    assert lengths.used.tolist() == positions
    contexts = []
    for index, (part, length) in enumerate(zip(q.split_with_sizes(rows), positions, strict=True)):
        begin = int(lengths.positions[index])
        of_span = [keys[begin : begin + length], values[begin : begin + length]]
        if lengths.table is not None:
            assert lengths.table.dtype == torch.int32
            of_span = [store[lengths.table[index].long()].flatten(0, 1)[:length] for store in (keys, values)]
        left = None if window[0] < 0 else window[0] + 1
        contexts.append(by_formula(part, of_span[0], of_span[1], left))
    return torch.cat(contexts).to(q.dtype).view(q.shape)


@pytest.mark.parametrize("case", sorted(CASES))
def test_sdpa_is_the_formula(case: str) -> None:
    """In float32 on a CPU within 1e-5, pages consecutive or scattered."""
    check_case(SdpaBackend(), CASES[case], torch.float32, "cpu", PAGE, 1e-5)


@pytest.mark.parametrize("case", sorted(CASES))
def test_sdpa_in_bfloat16_is_the_formula(case: str) -> None:
    """In bfloat16 as exact as that allows."""
    check_case(SdpaBackend(), CASES[case], torch.bfloat16, "cpu", PAGE, 0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 5])
def test_scattered_pages_are_pages_in_a_row(window: int | None, dtype: torch.dtype) -> None:
    """The same keys and values give the same context bit for bit: one row, several and rows that branch, in one step
    and each alone."""
    generator = torch.Generator().manual_seed(7)
    inner = KVPool(2, 2, 8, dtype, "cpu", 12, PAGE)
    outer = KVPool(2, 2, 8, dtype, "cpu", 12, PAGE)
    order = [9, 2, 3, 11, 0, 6, 10, 1, 5, 8, 4, 7]
    for store, scattered in ((inner.keys, outer.keys), (inner.values, outer.values)):
        store.copy_(torch.randn(store.shape, generator=generator))
        for page, other in enumerate(order):
            scattered[:, other * PAGE : (other + 1) * PAGE] = store[:, page * PAGE : (page + 1) * PAGE]
    parts = [
        PagedSpan(range(4), 12, 1),
        PagedSpan(range(4, 8), 9, 6),
        PagedSpan(range(8, 12), 11, 4, Tree(11).add([-1, -1, 0, 1])),
    ]
    q = torch.randn(11, 4, 8, generator=generator).to(dtype)
    for chosen, queries in ((parts, q), *(([part], q[: part.rows]) for part in parts)):
        contexts = []
        for pool, pages in ((inner, range(12)), (outer, order)):
            spans = [replace(part, pages=[pages[page] for page in part.pages]) for part in chosen]
            step = SdpaBackend().step(pool, spans, [pool.runs(span) for span in spans])
            contexts.append([step.attend(layer, window, queries) for layer in range(2)])
        for found, wanted in zip(contexts[1], contexts[0], strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("page_multiple", [1, 256], ids=["by pages", "gathered"])
def test_what_cuda_kernels_are_told_is_the_step(case: str, page_multiple: int) -> None:
    """Lengths, tables, windows and gathered positions describe the step, read as the kernels' documents say."""
    backend = LinesBackend(VarlenBackend("described", described, page_multiple))
    check_case(backend, CASES[case], torch.float32, "cpu", PAGE, 1e-5)


def test_a_kernel_that_misreads_pages_is_given_none() -> None:
    """A kernel that refuses a table, computes something else with it, or reads behind a session's end, gets gathered
    keys and is right."""

    def refusing(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
    ) -> torch.Tensor:
        if lengths.table is not None:
            raise RuntimeError("block_table is not supported")
        return described(q, keys, values, lengths, window)

    def ignoring(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
    ) -> torch.Tensor:
        return described(q, keys, values, lengths, window) if lengths.table is None else torch.zeros_like(q)

    def masking(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: Lengths, window: tuple[int, int]
    ) -> torch.Tensor:
        contexts = described(q, keys, values, lengths, window)
        if lengths.table is None:
            return contexts
        # As one that multiplies the values behind a session's end by chances of nought.
        ends = [
            values[lengths.table[index].long()].flatten(0, 1)[length:].sum()
            for index, length in enumerate(lengths.used.tolist())
        ]
        return contexts + 0 * torch.stack(ends).repeat_interleave(lengths.rows.diff()).to(q.dtype)[:, None, None]

    for kernel in (refusing, ignoring, masking):
        backend = VarlenBackend("wrong", kernel, page_multiple=1)
        check_case(backend, CASES["everything at once"], torch.float32, "cpu", PAGE, 1e-5)


@pytest.mark.parametrize("case", sorted(set(CASES) - {"heads of an odd size"}))
@pytest.mark.parametrize("page_positions", [16, 256])
@pytest.mark.parametrize("name", ["sdpa", "varlen", "flash"])
def test_cuda_backends_are_the_formula(name: str, page_positions: int, case: str) -> None:
    """On a GPU in bfloat16, with pages that every kernel reads in place and with pages that some must gather."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    try:
        backend = choose_backend("cuda", torch.bfloat16, name)
    except BackendMissing as missing:
        pytest.skip(str(missing))
    check_case(backend, CASES[case], torch.bfloat16, "cuda", page_positions, 0.03)


def test_the_choice_says_what_is_missing() -> None:
    """On a CPU the choice is sdpa; a CUDA backend is a typed error that names what can run, a wrong name too."""
    for wanted in ("auto", "sdpa"):
        assert choose_backend("cpu", torch.bfloat16, wanted).name == "sdpa"
    for wanted in set(BACKENDS) - {"auto", "sdpa"}:
        with pytest.raises(BackendMissing, match=f"'{wanted}' cannot run here.*CUDA.*'sdpa'"):
            choose_backend("cpu", torch.bfloat16, wanted)
    with pytest.raises(BackendMissing, match="bfloat16"):
        choose_backend("cuda", torch.float32, "varlen")
    with pytest.raises(BackendMissing, match="not of 12"):
        choose_backend("cuda", torch.bfloat16, "flash", head_dim=12)
    assert choose_backend("cuda", torch.bfloat16, "auto", head_dim=12).name == "sdpa"
    with pytest.raises(ValueError, match="choose among auto, sdpa"):
        choose_backend("cpu", torch.bfloat16, "fast")


@pytest.fixture(scope="module", params=TINY_NAMES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.load(build_tiny(request.param, tmp_path_factory.mktemp("model")))


def pool_of(stack: Stack, pages: int) -> KVPool:
    return KVPool(len(stack.blocks), stack.kv_heads, stack.spec.head_dim, stack.dtype, "cpu", pages, PAGE)


@pytest.mark.parametrize("halved", [False, True])
def test_branches_over_pages_are_branches_over_caches(reference: Reference, halved: bool) -> None:
    """A tree behind a line gives the same rows over scattered pages as over a cache, in one step or in halves."""
    stack, pool = reference.stack, pool_of(reference.stack, 8)
    generator = torch.Generator().manual_seed(5)
    cache, pages = stack.new_cache(30), (3, 0, 7, 5, 1)
    hidden = torch.randn(18, stack.spec.hidden_size, generator=generator)
    branching = Tree(11).add([-1, -1, 0, 0, 2, 2, 5])
    stack.run(hidden[:11], PagedBatch(pool, [PagedSpan(pages, 0, 11)], SdpaBackend()))
    stack.forward(hidden[:11], [Span(cache, 11)])
    span = PagedSpan(pages, 11, 7, branching)
    parts = list(span.halves()) if halved else [span]
    begin, found = 11, []
    for part in parts:
        found.append(stack.run(hidden[begin : begin + part.rows], PagedBatch(pool, [part], SdpaBackend())))
        begin += part.rows
    wanted = stack.forward(hidden[11:], [Span(cache, 7, branching)])
    torch.testing.assert_close(torch.cat(found), wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize(
    ("scattered", "name"), sample(product((False, True), ("sdpa", "described")), "True-sdpa True-described")
)
def test_steps_over_pages_are_steps_over_caches(reference: Reference, scattered: bool, name: str) -> None:
    """Five ragged steps of three sessions give the same rows, within 1e-5, wherever keys and values lie."""
    backend: Backend = SdpaBackend() if name == "sdpa" else VarlenBackend("described", described, 1)
    stack = reference.stack
    pool = pool_of(stack, 30)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(30, generator=generator).tolist() if scattered else list(range(30))
    caches = [stack.new_cache(40) for _ in range(3)]
    for rows in ((5, 1, 7), (1, 1, 1), (9, 1, 1), (1, 0, 3), (1, 1, 1)):
        hidden = torch.randn(sum(rows), stack.spec.hidden_size, generator=generator)
        paged = [
            PagedSpan(order[10 * index : 10 * index + 10], cache.length, count)
            for index, (cache, count) in enumerate(zip(caches, rows, strict=True))
        ]
        found = stack.run(hidden, PagedBatch(pool, paged, backend))
        wanted = stack.forward(hidden, [Span(cache, count) for cache, count in zip(caches, rows, strict=True)])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(wanted.abs().max())))


def test_greedy_tokens_over_pages_are_the_reference(reference: Reference) -> None:
    """A prompt in two chunks and then token by token over scattered pages: the same tokens as in one process."""
    prompt = [5, 17, 3, 88, 41, 9, 23]
    stack, pool, tokens = reference.stack, pool_of(reference.stack, 12), list(prompt)
    pages, position = (7, 3, 4, 11, 0, 9, 2), 0
    for count in (4, 3, *[1] * 19):
        hidden = reference.embedding.forward(tokens[position : position + count])
        rows = stack.run(hidden, PagedBatch(pool, [PagedSpan(pages, position, count)], SdpaBackend()))
        position += count
        if position == len(tokens):
            tokens.append(int(reference.head.forward(rows[-1:]).argmax()))
    assert tokens[len(prompt) :] == reference.generate(prompt, 20)


def test_a_step_that_runs_twice_writes_the_same(tmp_path: Path) -> None:
    """A step that was cut off is simply run again, whole or in parts."""
    checkpoint = Checkpoint.open(build_tiny("llama", tmp_path))
    stack = Reference.load(checkpoint.path).stack
    pool, backend = pool_of(stack, 6), SdpaBackend()
    hidden = torch.randn(9, 32, generator=torch.Generator().manual_seed(1))
    whole = [PagedSpan((4, 1), 0, 6), PagedSpan((2,), 0, 3)]
    first = stack.run(hidden, PagedBatch(pool, whole, backend))
    assert torch.equal(stack.run(hidden, PagedBatch(pool, whole, backend)), first)
    halves = [PagedSpan((4, 1), 0, 3)], [PagedSpan((4, 1), 3, 3), PagedSpan((2,), 0, 3)]
    parts = [
        stack.run(part, PagedBatch(pool, half, backend))
        for part, half in zip(hidden.split_with_sizes([3, 6]), halves, strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), first, rtol=0, atol=1e-5)
