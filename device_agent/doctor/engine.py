"""What computes here: PyTorch's build, which instructions can run, GPUs and their memory."""

from __future__ import annotations

import platform
import shutil
import warnings
from importlib import import_module, metadata
from pathlib import Path
from typing import Final

import torch

from service.doctor.finding import Finding, Say, sentence
from split_model.device import AUTO, choose_device
from split_model.few_rows import why_not

DRIVER: Final = Path("/proc/driver/nvidia/version")
"""Is there where NVIDIA's driver is."""

_BARE: Final = ("DEFAULT", "NO AVX")
"""What PyTorch calls a processor whose wide instructions it does not use."""

_LEAST_CAPABILITY: Final = (8, 0)
"""Of a GPU whose attention kernels take bfloat16 (Ampere)."""


def torch_build(say: Say) -> None:
    """Which PyTorch that is, and how it uses the processor."""
    built = "for CPUs"
    if torch.version.cuda is not None:
        built = f"for CUDA {torch.version.cuda}"
    elif torch.version.hip is not None:
        built = f"for ROCm {torch.version.hip}"
    capability = torch.backends.cpu.get_cpu_capability()
    seen = f"{torch.__version__}, built {built}; {capability} instructions, {torch.get_num_threads()} threads"
    if capability in _BARE and platform.machine() in ("x86_64", "AMD64"):
        todo = "Let the virtual machine or container see the processor's own features (cpu: host), if it has AVX2."
        say(Finding("PyTorch", "warn", seen, todo))
    else:
        say(Finding("PyTorch", "ok", seen, figures={"threads": torch.get_num_threads()}))


def kernels(dtype: str, say: Say) -> None:
    """Whether few rows of bfloat16 are multiplied by Trilby's own instructions."""
    reason = why_not()
    if not reason:
        say(Finding("kernels", "ok", "few rows of bfloat16 are multiplied by Trilby's own instructions"))
        return
    seen = f"few rows of bfloat16 are multiplied by PyTorch's: {reason}"
    if dtype == "bfloat16":
        todo = "Nothing is broken; where answers are slow, compare with --dtype float32, which takes twice the memory."
        say(Finding("kernels", "warn", seen, todo))
    else:
        say(Finding("kernels", "ok", seen))


def gpus(wanted: str, say: Say) -> None:
    """The GPUs that PyTorch can use here, and what is in the way of others.

    wanted: as ``--device`` has it.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    if there:
        for number in range(torch.cuda.device_count()):
            say(_gpu(number))
        _flash(say)
    else:
        say(_no_gpu(str(warned[0].message) if warned else ""))
    if wanted != AUTO:
        try:
            choose_device(wanted, 0)
        except ValueError as error:
            seen, _, todo = str(error).partition("; ")
            say(Finding("--device", "fail", seen, sentence(todo) or "Say --device auto, which takes what there is."))


def _gpu(number: int) -> Finding:
    try:
        free, total = torch.cuda.mem_get_info(number)
        major, minor = torch.cuda.get_device_capability(number)
        name = torch.cuda.get_device_name(number)
    except RuntimeError as error:  # All of its memory is taken, or somebody has it for himself alone.
        todo = "See nvidia-smi: who uses it, and whether it is well."
        return Finding("GPU", "warn", f"cuda:{number} cannot be used: {str(error).splitlines()[0]}", todo)
    seen = f"cuda:{number} is {name} ({major}.{minor}), {free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
    return Finding("GPU", "ok", seen, figures={"free_bytes": free, "all_bytes": total})


def _no_gpu(warned: str) -> Finding:
    """PyTorch sees none. warned: what it has said about that; empty: nothing."""
    if not (DRIVER.exists() or shutil.which("nvidia-smi")):
        return Finding("GPU", "ok", "none is here; the layers run on the processor")
    if torch.version.cuda is None:
        todo = "Install a build for CUDA: make serve, without PIP_FLAGS that name PyTorch's index for CPUs."
        return Finding("GPU", "warn", "NVIDIA's driver is here, and this PyTorch is built for CPUs", todo)
    seen = f"NVIDIA's driver is here, and PyTorch for CUDA {torch.version.cuda} cannot use it"
    seen += f": {warned.split('. ')[0]}" if warned else ""
    todo = "See what nvidia-smi says: the driver may be too old for this PyTorch, or the container may not be given it."
    return Finding("GPU", "warn", seen, todo)


def _flash(say: Say) -> None:
    """flash-attn, where there is a GPU for it."""
    try:
        version = metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        say(Finding("flash-attn", "ok", "not installed; PyTorch's own attention is used"))
        return
    if torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        say(Finding("flash-attn", "ok", f"{version} is installed, and needs a GPU from Ampere on: it is not used"))
        return
    try:
        import_module("flash_attn")
    except Exception as error:  # Built for another PyTorch, it fails in many ways.
        todo = f"Install one that is built for PyTorch {torch.__version__}, or none: it is not needed."
        say(Finding("flash-attn", "warn", f"{version} cannot be imported: {error}", todo))
    else:
        say(Finding("flash-attn", "ok", f"{version} can be used"))
