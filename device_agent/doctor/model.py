"""The model that is to run here: whether it can be read, which weights it has, and whether they have room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from device_agent.chain.within_memory import residence_within
from device_agent.doctor.link import NAME
from device_agent.doctor.need import need_of, said
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Say
from service.modes import MODES
from service.sizes import bytes_of
from split_model.checkpoint import Checkpoint
from split_model.device import choose_device
from split_model.errors import ModelError, ModelNotFound, UnsupportedModel
from split_model.free_memory import free_bytes
from split_model.hub import identity, resolve
from split_model.names import model_name
from split_model.offload.budget import BudgetTooSmall
from split_model.slices import Slice, input_slice, middle_slice, output_slice, whole
from split_model.spec import ModelSpec
from wire.session_messages import DeviceHello

STREAMED_ROWS: Final = 1024
"""Rows of a forward that room is kept for where weights are read at each use."""

SHOWN_DIGEST: Final = 19
"""Characters: what it is and twelve digits."""


@dataclass(frozen=True)
class ModelHere:
    """A model that can be read.

    Attributes:
        hello: what a device with it says to a cloud server, without its token; None where all its layers stay here.
    """

    spec: ModelSpec
    hello: DeviceHello | None


def opened(config: DoctorConfig, say: Say) -> ModelHere | None:
    """Tell what model that is, and whether it can run so; None where it cannot. Nothing is loaded, or fetched."""
    divided = MODES[config.mode].has_cloud

    def held(spec: ModelSpec) -> list[Slice]:
        if not divided:
            return [whole(spec)]
        return [input_slice(spec, config.split), output_slice(spec, config.tail)]

    try:
        checkpoint = Checkpoint.open(resolve(config.model, only=held, attention=None), "causal" if divided else None)
        spec, digest = checkpoint.spec, identity(checkpoint)
        middle = middle_slice(spec, config.split, config.tail) if divided else None
    except ModelNotFound as error:
        say(Finding("model", "fail", str(error), _where(config.model)))
        return None
    except UnsupportedModel as error:
        todo = "Take another model; one that does not write on from a text runs with --mode local."
        say(Finding("model", "fail", str(error), todo))
        return None
    except (ModelError, OSError) as error:
        say(Finding("model", "fail", str(error), "Get it again: files of it are missing, or are another model's."))
        return None
    except ValueError as error:
        say(Finding("model", "fail", str(error), "Say a smaller --split or --tail."))
        return None
    name = next(iter(config.served_model_name), model_name(config.model))
    layers = f"{spec.num_layers} layers of {spec.hidden_size}"
    seen = f"{name}: {spec.model_type}, {layers}, {digest[:SHOWN_DIGEST]}…"
    if middle is None:
        say(Finding("model", "ok", seen, figures={"layers": spec.num_layers}))
        return ModelHere(spec, None)
    say(_cut(seen, spec, middle, may_show_all=config.mode == "cloud"))
    sizes = (middle.first_layer, middle.last_layer, spec.hidden_size, config.dtype)
    return ModelHere(spec, DeviceHello(NAME, "", name, digest, *sizes))


def _cut(seen: str, spec: ModelSpec, middle: Slice, *, may_show_all: bool) -> Finding:
    """What of a model runs where. may_show_all: the cloud may see the text, as one mode has it."""
    figures = {"layers": spec.num_layers, "first_layer": middle.first_layer, "last_layer": middle.last_layer}
    if not middle.num_layers:
        todo = "Say a smaller --split or --tail, or --mode local, which needs no cloud."
        return Finding("model", "warn", f"{seen}; no layers are left for the cloud", todo, figures=figures)
    seen += f"; layers {middle.first_layer} to {middle.last_layer - 1} run in the cloud"
    if not middle.first_layer and not may_show_all:
        todo = "Keep some layers here (--split 2): with none the cloud could read the tokens off the rows."
        return Finding("model", "warn", seen, todo, figures=figures)
    return Finding("model", "ok", seen, figures=figures)


def _where(model: str) -> str:
    if Path(model).exists() or Path(model).is_absolute() or model.startswith((".", "~")):
        return "Name the folder of a Hugging Face model, with its config.json."
    return "Name a folder that is here; or, where it is one of the hub, let trilby device fetch it at its first start."


def room(config: DoctorConfig, here: ModelHere, say: Say) -> None:
    """Tell whether what this machine has of the model has room: all of it where no other machine is named."""
    spec, mode = here.spec, MODES[config.mode]
    positions = min(config.max_model_len or spec.max_positions, spec.max_positions)
    if mode.group:
        seen = "not looked at: a group shares the layers by what its members have, as trilby plan says beforehand"
        say(Finding("room", "ok", seen))
        return
    if config.memory and not mode.has_cloud:
        say(_within(config, spec, positions))
        return
    alone = not mode.has_cloud or not config.cloud
    slices = [whole(spec)] if alone else [input_slice(spec, config.split), output_slice(spec, config.tail)]
    need = need_of(spec, config.dtype, slices, positions)
    try:
        device = choose_device(config.device, need.weights)
    except ValueError:
        return  # It was said with the GPUs.
    say(said(need, free_bytes(device), f"{'all layers' if alone else 'the layers of a device'} on {device}"))
    if not alone:
        middle = need_of(spec, config.dtype, [middle_slice(spec, config.split, config.tail)], positions)
        seen = f"a cloud server needs {middle.weights / 1e9:.2f} GB for its layers, and pages beside them"
        say(Finding("room there", "ok", seen, figures={"weight_bytes": middle.weights}))


def _within(config: DoctorConfig, spec: ModelSpec, positions: int) -> Finding:
    """With ``--memory``."""
    budget, rows = bytes_of("--memory", config.memory), min(STREAMED_ROWS, positions)
    try:
        stays = residence_within(spec, config.dtype, budget, positions=positions, rows=rows)
    except BudgetTooSmall as error:
        todo = "Give more with --memory, or less to remember with --max-model-len."
        return Finding("room", "fail", f"--memory {config.memory} is too little: {error}", todo)
    free, streamed = free_bytes(), len(stays.streamed)
    figures = {"needed_bytes": stays.needed, "budget_bytes": budget, "free_bytes": free, "streamed": streamed}
    seen = f"{stays.needed / 1e9:.2f} of --memory's {budget / 1e9:.2f} GB are taken; {streamed} of "
    seen += f"{2 * spec.num_layers} halves of layers are read from the disk at each use"
    if budget > free:
        todo = "Say less with --memory, or close other programs."
        return Finding("room", "warn", f"{seen}; only {free / 1e9:.2f} GB are free", todo, figures=figures)
    return Finding("room", "ok", seen, figures=figures)
