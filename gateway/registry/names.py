"""What is where in redis. One redis may serve one fleet of gateways."""

from __future__ import annotations

from typing import Final

GATEWAYS: Final = "trilby:gateways"
"""The ids of gateways, by when each was heard last."""

GATEWAY: Final = "trilby:gateway:"
"""With an id behind it: what that gateway says of itself, until its time to live is over."""

LIMIT: Final = "trilby:limit:"
"""With a tenant's name behind it: what that tenant has had in the last minute."""

RESPONSES: Final = "trilby:responses"
"""What is kept of responses, with the conversations before them; and, with a word behind it, in which order."""

KEYS: Final = "trilby:keys"
"""The records of API keys, by their digests."""

KEYS_VERSION: Final = "trilby:keys:version"
"""A number that is another one once a key has changed."""
