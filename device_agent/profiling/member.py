"""`python -m device_agent.profiling.member`: one of the devices that `trilby profile --devices N` measures together."""

from __future__ import annotations

import asyncio

from device_agent.profiling.config import MeasuredMemberConfig
from device_agent.profiling.measuring import measure_of, opened
from device_agent.profiling.together import as_member
from peers.board import PeerLost
from peers.membership import join
from service.logs import configure_logs
from service.settings import settings_command
from service.stopping import end_at_once
from split_model.errors import ModelError
from wire.errors import ConnectionFailed


def run(config: MeasuredMemberConfig) -> None:
    """Join, measure, say what was measured."""
    end_at_once()
    configure_logs(config.name, "warning", "text")
    try:
        asyncio.run(_take_part(config))
    except (ModelError, ValueError, OSError, PeerLost, ConnectionFailed) as error:
        raise SystemExit(f"{config.name} cannot be measured: {error}") from None


async def _take_part(config: MeasuredMemberConfig) -> None:
    measure = measure_of(config, opened(config), config.name)
    async with join(config.join, config.group_key, config.name) as membership:
        await as_member(membership, measure, config.quick)


main = settings_command(MeasuredMemberConfig, run, name="python -m device_agent.profiling.member")

if __name__ == "__main__":
    main(prog_name=main.name)
