"""What a machine's part of a model takes of its memory, beside what is free. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.doctor.finding import Finding
from split_model.offload.budget import GROWS
from split_model.slices import DTYPE_BYTES, Slice, held_bytes, slice_bytes, whole
from split_model.spec import ModelSpec


@dataclass(frozen=True)
class Need:
    """Bytes of some layers, and of the keys and values of one answer of so many ``positions``, as it may be longest."""

    weights: int
    kept: int
    positions: int


def need_of(spec: ModelSpec, dtype: str, slices: Sequence[Slice], positions: int) -> Need:
    """What some slices of a model need in one process.

    dtype: a name of ``DTYPE_BYTES``. Raises ValueError where a slice reaches past the model.
    """
    weights = held_bytes(spec, slices, dtype)
    if spec.reader is not None:
        weights += slice_bytes(spec.reader, whole(spec.reader), dtype)
    if spec.attention == "bidirectional":  # Of what is read nothing is kept.
        return Need(weights, 0, positions)
    layers = sum(each.num_layers for each in slices)
    kept = GROWS * 2 * layers * spec.num_kv_heads * spec.head_dim * positions * DTYPE_BYTES[dtype]
    return Need(weights, kept, positions)


def said(need: Need, free: int, whose: str) -> Finding:
    """What is to be said of it.

    free: bytes that can be taken. whose: which layers, and where.
    """
    figures = {"weight_bytes": need.weights, "kept_bytes": need.kept, "free_bytes": free, "positions": need.positions}
    seen = f"{whose} take {need.weights / 1e9:.2f} GB"
    if need.kept:
        seen += f", an answer of {need.positions} positions up to {need.kept / 1e9:.2f} GB more"
    seen += f"; {free / 1e9:.2f} GB are free"
    if need.weights > free:
        todo = "Take --dtype bfloat16, leave more layers to others (--split, or a group), or say --mode local --memory."
        return Finding("room", "fail", seen, todo, figures=figures)
    if need.weights + need.kept > free:
        todo = "Say --max-model-len if answers need not be so long, or close other programs."
        return Finding("room", "warn", seen, todo, figures=figures)
    return Finding("room", "ok", seen, figures=figures)
