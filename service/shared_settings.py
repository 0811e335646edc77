"""Settings that several processes have, each declared once: one class for each idea, and of them the three sides that
``trilby serve`` starts as processes of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from service.children import AFTER_DRAINING_S
from service.dialect_settings import DialectSettings
from service.draft_settings import HAT_PAPER, DraftSettings
from service.modes import MODES, NO_DRAFT
from service.secret_files import current
from service.setting_names import command_line, flag_of
from service.settings import setting, settle, tuning
from service.sizes import for_each
from service.stopping import DRAIN_S

DEVICES: Final = 2
"""Of a group where nobody says how many."""

MAX_DEVICES: Final = 64
"""Of a group; more than that no plan is made for."""


def words(text: str) -> tuple[str, ...]:
    """Return the non-empty parts of a list written with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class ModelSettings:
    """The model, the same for cloud and devices."""

    model: str = setting(help="checkpoint folder or Hugging Face id")
    served_model_name: tuple[str, ...] = setting(
        (), "name that clients use for the model; several times: each is one; not given: the folder's name or the id"
    )
    max_model_len: int = setting(
        0, "positions of one request, prompt and answer together; 0: as many as the model has", minimum=0
    )
    dtype: Literal["float32", "bfloat16"] = setting("float32", "number format of weights and hidden states")
    device: str = setting(
        "auto", "where the layers run: cpu, cuda, cuda:1 …; auto: on the GPU with most room, where one has enough"
    )
    threads: int = tuning(
        0, "threads for the matrix products; 0: PyTorch's choice, in trilby serve half of the cores", minimum=0
    )

    @property
    def name_in_cloud(self) -> str:
        """The name under which device and cloud know the model; empty: that of the checkpoint."""
        return next(iter(self.served_model_name), "")

    def check_names(self) -> None:
        """Raises ValueError where a name that clients use is empty or said twice."""
        names = self.served_model_name
        if not all(names) or len(set(names)) < len(names):
            raise ValueError("--served-model-name needs a name, another one each time it is given")


@dataclass(frozen=True)
class SplitSettings:
    """Who computes what."""

    mode: str = setting("hat", "; ".join(f"{name}: {mode.about}" for name, mode in MODES.items()), choices=tuple(MODES))
    split: int = setting(
        usual=2,
        help="layers the device keeps at the front; in mode cloud and with a group 0; with 0 the cloud could read the "
        "tokens off the rows it gets",
        minimum=0,
    )
    tail: int = setting(0, "layers the device keeps at the end", minimum=0)
    whole_prompts: bool = tuning(
        False, "devices send a prompt in one forward, or in as few as the cloud's --max-rows allows; nothing overlaps"
    )


@dataclass(frozen=True)
class DevicesSettings:
    """A group of devices, which needs no cloud."""

    devices: int = setting(DEVICES, "devices of the group, this one among them", minimum=1, maximum=MAX_DEVICES)
    shares: Literal["measured", "even"] = tuning(
        "measured",
        "who computes how much: measured: what is fastest by what devices and links were measured to do, which takes "
        "some seconds at first; even: everybody the same",
    )
    fewest_devices: bool = tuning(
        False, "only so many of them compute as make answers faster; the others are spare until one is lost"
    )


@dataclass(frozen=True)
class PromptSettings:
    """How prompts travel."""

    chunk: int = tuning(0, "prompt tokens in one chunk; 0: as the cloud advises", minimum=0)
    download: Literal["last", "all"] = tuning(
        "last", "rows of a prompt that come back: last: the one the head needs; all: as a plain U-shape has it"
    )
    pack_rows: Literal["auto", "off"] = tuning(
        "auto",
        "rows in fewer bytes (bfloat16: a third), bit for bit the same: auto: where the link is slow enough; off",
    )


@dataclass(frozen=True)
class PaddingSettings:
    """What lengths say."""

    pad_frames: bool = tuning(
        False,
        "make messages to and from cloud and gateway as long as one of a few sizes, so that their lengths say less of "
        "prompts and answers; both must be of a release that can",
    )


@dataclass(frozen=True)
class StepSettings:
    """Steps of the cloud."""

    step_rows: int = tuning(usual=512, help="most rows in one step of the cloud, where --mode does not say", minimum=64)


@dataclass(frozen=True)
class ApiSettings:
    """The API."""

    host: str = setting("127.0.0.1", "address to listen on", variable="gateway_host")
    port: int = setting(8000, "port to listen on", minimum=0, maximum=65535, variable="gateway_port")
    api_keys: str = setting(
        "", "keys that clients must show, separated by commas; none: no key is asked", secret=True, many=True
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys, one by one."""
        return words(current(self.api_keys))


@dataclass(frozen=True)
class DeviceTokenSettings:
    """Between gateway and devices."""

    device_token: str = setting("", "secret that devices show to the gateway; required beyond loopback", secret=True)


@dataclass(frozen=True)
class CloudTokenSettings:
    """Between cloud and devices."""

    cloud_token: str = setting("", "secret that devices show to the cloud; required beyond loopback", secret=True)


@dataclass(frozen=True)
class ServerSettings:
    """Who may do what."""

    operator_token: str = setting(
        "", "secret that lets an operator drain, and see a cloud's state; none: only a signal drains", secret=True
    )
    allowed_hosts: str = tuning(
        "",
        "Host names accepted beside loopback's, by commas, those among them by which Prometheus scrapes; "
        "none: any beyond loopback",
    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The Host names accepted beside loopback's, in lower case."""
        return words(self.allowed_hosts.lower())


@dataclass(frozen=True)
class ProcessSettings:
    """The process."""

    drain_within_s: float = tuning(
        DRAIN_S,
        f"seconds that what is open gets after SIGTERM; trilby serve is over {AFTER_DRAINING_S:g} s later",
        minimum=0,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least severe log lines shown")
    log_form: Literal["text", "json"] = tuning("text", "log lines for people or for collectors")


@dataclass(frozen=True)
class GatewaySide(DeviceTokenSettings, ApiSettings):
    """What ``trilby serve`` and ``trilby gateway`` both have."""


@dataclass(frozen=True)
class CloudSide(StepSettings, SplitSettings, ModelSettings):
    """What ``trilby serve`` and ``trilby cloud`` both have."""


@dataclass(frozen=True)
class MemorySettings:
    """Its memory."""

    memory: str = setting(
        "",
        "memory for weights, keys and values, as 2GiB or 1.5GB, a number alone being MB; in trilby serve also one for "
        "each device of a group, by commas; empty: what is free. What of the weights has no room is read from the disk "
        "at each use (--mode local, lime)",
    )
    code_weights: Literal["auto", "off"] = tuning(
        "auto",
        "weights of bfloat16 checkpoints that are read at each use in fewer bytes (30 %, in float32 65 %), bit for bit "
        "the same (--mode local): auto: where they are here sooner so; off",
    )


@dataclass(frozen=True)
class PruningSettings:
    """What may be lost for speed."""

    t_max: float = setting(
        0.0,
        "seconds in which a prompt is to be read (--mode local, or edgeformer, galaxy, tensor, pipeline): where that "
        "takes longer, attention heads are left out, which changes answers; requests that say "
        '"exact": true have all. 0: none is ever left out',
        minimum=0,
    )
    prune_by: Literal["effect", "liscore", "liscore-literal", "magnitude", "random"] = tuning(
        "effect",
        "which heads go first: those whose absence was measured to change least; or by EdgeFormer's score of the "
        "prompt, mended or literally; or the smallest; or any, the last three for comparison",
    )


@dataclass(frozen=True)
class DeviceSide(
    PaddingSettings,
    PromptSettings,
    DraftSettings,
    DevicesSettings,
    SplitSettings,
    MemorySettings,
    PruningSettings,
    DialectSettings,
    ModelSettings,
):
    """What ``trilby serve`` and ``trilby device`` both have; with the mode and ``--hat-paper`` applied."""

    def __post_init__(self) -> None:
        """Raises ValueError where two settings contradict each other; the message says which."""
        self.check_names()
        mode = MODES[self.mode]
        for_each("--memory", self.memory, self.devices if mode.group else 1)
        if not all(self.draft):
            raise ValueError("--draft needs a name, one each time it is given")
        if self.hat_paper:
            if self.mode not in ("hat", "local"):
                raise ValueError(f"--hat-paper is not for --mode {self.mode}: leave one of them out")
            self._fix("--hat-paper", HAT_PAPER)
        if not mode.group and self.devices != DEVICES:
            names = ", ".join(name for name, each in MODES.items() if each.group)
            raise ValueError(f"--devices is for groups (--mode {names}), and --mode {self.mode} has none")
        self._check_pruning()
        if self.fewest_devices and (not mode.group or self.shares == "even"):
            raise ValueError("--fewest-devices is for groups whose shares are measured: leave it or --shares out")
        self._fix(f"--mode {self.mode}", mode.device)
        if self.whole_prompts and self.chunk:
            raise ValueError("prompts go whole here (--whole-prompts, or the mode): leave --chunk out")
        if self.mode == "u-small" and len(self.draft) != 1:
            raise ValueError("--mode u-small needs one --draft: the folder or Hugging Face id of a small model")
        settle(self, DeviceSide, {"split": 0} if mode.group else {})

    def _check_pruning(self) -> None:
        """Raises ValueError where heads cannot be left out, or not so."""
        if not 0 <= self.t_max < math.inf:
            raise ValueError(f"--t-max {self.t_max} is no number of seconds; 0: no head is ever left out")
        if self.t_max and (not MODES[self.mode].prunes or (self.memory and not MODES[self.mode].group)):
            names = ", ".join(name for name, each in MODES.items() if each.prunes and each.group)
            raise ValueError(f"--t-max is for layers that stay in memory: --mode {names}, or local without --memory")
        if self.t_max and MODES[self.mode].group and self.prune_by.startswith("liscore"):
            raise ValueError(f"--prune-by {self.prune_by} scores prompts by all layers, and these are not all here")

    def _fix(self, who: str, fixed: Mapping[str, Any]) -> None:
        """Give settings the values that ``who`` says, where they have them not already. Raises ValueError."""
        defaults = {each.name: each.default for each in fields(self)}
        for name, value in fixed.items():
            if getattr(self, name) not in (defaults[name], value):
                said = " ".join(command_line(**{name: value}))
                raise ValueError(f"{who} already says {said}; leave {flag_of(name)} or it out")
            object.__setattr__(self, name, value)

    @property
    def wanted_drafters(self) -> tuple[str, ...]:
        """The drafters to load, the first being the default; empty: the best there is.

        Beside a group as beside a cloud it pays to draft; without layers of its own a device has nothing but its text
        to draft from.
        """
        if self.draft or self.mode == "hat":
            return self.draft
        if not MODES[self.mode].group:
            return (NO_DRAFT,)
        return () if self.split else ("lookup",)
