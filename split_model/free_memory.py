"""How much memory can be taken now: of this machine, this container, or a GPU."""

from __future__ import annotations

import torch

from split_model.host_memory import free_host_bytes


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Bytes that can be taken on ``device`` now, within the limits of this container or service."""
    device = torch.device(device)
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_host_bytes()
