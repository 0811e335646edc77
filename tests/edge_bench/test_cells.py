"""Tests of what is planned: cells, the plans that they run, and what their links stand for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import pytest
from bench import edgeformer, galaxy, voltage
from bench.edge.cells import ENVIRONMENTS, REPEATS, Cell
from bench.edge.edgeformer_figures import PAPER, of
from bench.edge.measured import profile
from bench.edge.methods import METHODS, thinned
from bench.edge.portal import evenly_kept
from bench.edge.records import Records, expected_s
from bench.edge.run import once_each
from bench.edge.shapes import SHAPES, Shape

from device_agent.group.holding.narrowing import can_narrow
from device_agent.planning.plan import Lent, Sharded, Whole
from device_agent.planning.profile import AXES
from device_agent.planning.table import Table
from device_agent.planning.task import Task, Work


def task(shape: Shape, devices: int, mb_s: float) -> Task:
    """All products run equally fast."""
    model = shape.model()
    group, column = 1e-9 * model.hidden * model.head_dim, 1e-9 * model.hidden
    seconds = {"query": group, "key_value": 2 * group, "output": group, "up": column, "down": column}
    seconds["attend"] = 2e-9 * model.head_dim
    tables = {part: Table(((1,),) * len(axes), (seconds.get(part, 1e-12),)) for part, axes in AXES.items()}
    known = profile([tables] * devices, [1.0] * devices, [1 << 40] * devices, mb_s)
    names = tuple(f"device-{number}" for number in range(1, devices + 1))
    return Task(shape.model(), known, names, "terminal", Work(shape.rows, 0, shape.rows))


@pytest.mark.parametrize("cells", [voltage.cells, galaxy.cells, edgeformer.cells])
@pytest.mark.parametrize("quick", [True, False])
def test_planned_cells_have_methods_environments_and_names_of_their_own(cells: object, quick: bool) -> None:
    """Two cells with one name would be one record; what is quick is part of the whole."""
    assert callable(cells)
    planned = list(dict.fromkeys(Cell(**cell.as_dict()) for cell in cells(quick)))
    assert len({cell.name for cell in planned}) == len(planned) == len(once_each(cells(quick)))
    assert {cell.name for cell in cells(True)} <= {cell.name for cell in cells(False)}
    for cell in planned:
        assert cell.method in METHODS
        assert cell.devices <= len(ENVIRONMENTS[cell.environment].cores)


@pytest.mark.parametrize(
    ("page", "ours"),
    [
        (voltage, voltage.of("gpt2", "voltage")),
        (galaxy, Cell("A", "bert-l", "joint", 4)),
        (edgeformer, of("half-opt-13b", "edgeformer")),
    ],
)
def test_headline_rows_are_measured_in_three_rounds(page: ModuleType, ours: Cell) -> None:
    """Each with what it is compared with, one round behind the other; once where it shall be quick. The first round's
    records have the names that they had when there was one."""
    planned = once_each(page.cells(False))
    names = {cell.name for cell in planned}
    for repeat in range(1, REPEATS):
        first = {replace(cell, repeat=0).name for cell in planned if cell.repeat == repeat}
        assert {ours.name, ours.local().name} <= first <= names
        again = replace(ours, repeat=repeat)
        assert again.name == f"{ours.name}_x{repeat + 1}" and again.local().repeat == repeat
        assert again.reference() == ours.reference() and again.calibration() == ours.calibration()
    assert [cell.repeat for cell in planned if cell.repeat] == sorted(cell.repeat for cell in planned if cell.repeat)
    assert not any(cell.repeat for cell in page.cells(True))


def test_quotas_leave_the_emulation_its_share() -> None:
    """All of them together are at most 1.6 of two cores."""
    assert all(sum(environment.cores) <= 1.6 for environment in ENVIRONMENTS.values())


def test_links_make_all_gathers_take_what_was_derived_of_the_paper() -> None:
    """0.40 of one device at six devices and 500 Mb/s, of BERT-large."""
    shape = SHAPES["bert-large"]
    mb_s = voltage.port_mb_s("bert-large", task(shape, 6, 0.0), 10.0)
    gathers_s = 24 * 5 / 6 * shape.rows * 1024 * 4 / (mb_s * 1e6)
    assert gathers_s == pytest.approx(0.40 * 10)


def test_links_make_voltage_as_published_as_fast_as_in_the_paper() -> None:
    """Where nothing else was derived: products, gathers and both ends take the paper's share of one device."""
    shape = SHAPES["gpt2"]
    free = task(shape, 6, 0.0)
    one = free.prefill(METHODS["local"][1](free)).seconds
    linked = task(shape, 6, voltage.port_mb_s("gpt2", free, one))
    published = linked.prefill(METHODS["voltage-paper"][1](linked)).seconds
    assert published / one == pytest.approx(1 + voltage.PAPER["gpt2"], rel=0.01)


def test_links_of_galaxy_make_megatron_take_what_the_paper_says() -> None:
    """Of environment A's table: its time over EdgeShard's, which is one device's, less its quarter of the products."""
    shape = SHAPES["bert-l"]
    mb_s = galaxy.port_mb_s("bert-l", task(shape, 4, 0.0), 10.0)
    reduces_s = 24 * 2 * 2 * 3 / 4 * shape.rows * 1024 * 4 / (mb_s * 1e6)
    assert reduces_s / 10 + 1 / 4 == pytest.approx(1.82 / 3.55)


@pytest.mark.parametrize("name", galaxy.SHAPES)
def test_longer_prompts_keep_what_links_stand_for(name: str) -> None:
    """Of environment B, whose links are made by A's one device: products and bytes grow alike, but for attention."""
    cells = [Cell(environment, name, "tensor", 4) for environment in "AB"]
    shares = []
    for cell in cells:
        one = task(cell.model, 1, 0.0)
        shares.append(one.work.rows / one.prefill(METHODS["local"][1](one)).seconds)
    assert cells[1].model.rows == pytest.approx(2.25 * cells[0].model.rows, abs=1)
    assert 0.85 < shares[1] / shares[0] < 1
    assert cells[1].name == f"B_{name}_tensor_4_500_r{cells[1].model.rows}" != cells[0].name
    assert cells[1].reference() == cells[0].local() and cells[1].local().model == cells[1].model


def test_links_of_edgeformer_make_galaxy_take_what_the_paper_says() -> None:
    """At 400 Mb/s, beyond a third of accelerate, which is one device."""
    shape = SHAPES["half-gpt2-l"]
    mb_s = edgeformer.port_mb_s("half-gpt2-l", task(shape, 3, 0.0), 10.0) * 400 / 500
    reduces_s = 36 * 2 * 2 * 2 / 3 * shape.rows * 640 * 4 / (mb_s * 1e6)
    assert reduces_s / 10 + 1 / 3 == pytest.approx(1.32 / 2.31)


def test_edgeformers_evaluation_fits_its_time() -> None:
    """150 minutes for all of it and 6 for the quick part, by what cells take where none is known; headline first."""
    whole, quick = (once_each(edgeformer.cells(quick)) for quick in (False, True))
    apart_s = sum(each.seconds for each in edgeformer.APART)
    assert sum(expected_s(Records({}), cell) for cell in whole) + apart_s <= 150 * 60
    assert sum(expected_s(Records({}), cell) for cell in quick) <= 6 * 60
    assert {cell.shape for cell in whole[: len(quick) * len(PAPER)]} == set(PAPER)


def test_edgeformer_as_published_lends_from_the_one_home_that_eq_2_fills() -> None:
    """One of equal devices has room for all; over links that cost nothing the others compute its heads."""
    of = task(SHAPES["half-gpt2-l"], 3, 0.0)
    layer = METHODS["edgeformer-paper"][1](of).layers[0]
    assert isinstance(layer, Lent) and layer.home == 0 and not layer.projections
    assert all(layer.groups[1:]) and layer.columns[1:] == (0, 0)


def test_what_corners_measure_is_lent_whether_it_pays_or_not() -> None:
    """Over links on which nothing does; half goes to the second device."""
    of = task(SHAPES["tiny"], 2, 1e-6)
    attention, both = (METHODS[name][1](of).layers[0] for name in ("lend-attention", "lend-projections"))
    assert attention == Lent(0, (2, 2), (256, 0)) and both == Lent(0, (2, 2), (128, 128), projections=True)


def test_what_is_measured_with_heads_left_out_can_leave_them_out() -> None:
    """Whatever is fastest with all of them."""
    of = task(SHAPES["half-gpt2-l"], 3, 50.0)
    assert can_narrow(METHODS["edgeformer-narrow"][1](of), SHAPES["half-gpt2-l"].spec())


def test_heads_left_out_are_taken_evenly() -> None:
    """A quarter of 20 leaves 15, and no two of those that go are neighbours; all of them leave none."""
    kept = evenly_kept(SHAPES["half-gpt2-l"].spec(), 0.25)
    assert len(kept.heads) == 15 and all(later - one > 1 for one, later in pairwise(kept.pruned))
    assert evenly_kept(SHAPES["half-gpt2-l"].spec(), 1.0).heads == ()


def test_a_part_of_a_plan_has_each_kind_of_layer_in_its_share() -> None:
    """Of eight layers, two by one kind and six by the other, four are one and three."""
    shape = SHAPES["tiny"]
    whole = METHODS["tensor"][1](task(shape, 2, 1.0))
    mixed = whole.__class__(**{**vars(whole), "layers": (Whole(0),) * 2 + whole.layers[2:]})
    kinds = [type(layer) for layer in thinned(mixed, 4).layers]
    assert kinds == [Whole, Sharded, Sharded, Sharded]
