"""What clients ask and are told where heads may be left out of a model."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from gateway.answer import Complete
from gateway.errors import RequestError
from gateway.parsing import parse
from gateway.policy import models_served
from gateway.registry.registry import AgentRecord
from gateway.replies import CompletionShape
from gateway.reply_schema import Heading
from gateway.usage import timings_of
from wire.request_messages import Accepted, Delta, Done, Finished, ServedModel, Spent, Timings

PLAIN = ServedModel("demo/model", 4096, 1)
PRUNED = ServedModel("demo/model", 4096, 1, t_max_s=1.5)


def test_a_request_may_ask_for_all_heads() -> None:
    """``exact`` is read in both endpoints, false where nobody says it, and refused where it is no truth value."""
    for endpoint, body in (
        ("completions", {"prompt": "x"}),
        ("chat.completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        for said, wanted in (({}, False), ({"exact": None}, False), ({"exact": False}, False), ({"exact": True}, True)):
            assert parse(endpoint, msgspec.json.encode(body | said)).terms.exact is wanted  # type: ignore[arg-type]
        with pytest.raises(RequestError) as refused:
            parse(endpoint, msgspec.json.encode(body | {"exact": "yes"}))  # type: ignore[arg-type]
        assert refused.value.param == "exact"


def test_an_answer_says_how_many_heads_were_left_out() -> None:
    """Alone or beside the times of a cloud; none is said too where some might have been, and nothing where never."""
    times = Timings(Spent(1, 2, 3, 4), Spent(5, 6, 7, 8), 2)
    for pruned, wanted in ((None, {}), (0, {"heads_pruned": 0}), (7, {"heads_pruned": 7})):
        told = timings_of(Finished(1, 0, "stop", None, pruned))
        assert (told is msgspec.UNSET) is (pruned is None)
        assert pruned is None or msgspec.to_builtins(told) == wanted
        told = timings_of(Finished(1, 0, "stop", times, pruned))
        assert msgspec.to_builtins(told).keys() == {"prompt", "decode", *wanted}


def test_of_several_prompts_the_most_heads_are_told() -> None:
    """Whichever of them is complete last, and though a device that leaves none out has read another."""
    for order in itertools.permutations((0, 7, None, 3)):
        shape = CompletionShape(Heading("id", 1, "m"), len(order), logprobs=False)
        shape.absorb([*(Finished(1, at, "stop", None, pruned) for at, pruned in enumerate(order)), Complete(1, 1)])
        assert msgspec.to_builtins(shape.whole())["timings"] == {"heads_pruned": 7}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi", "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
    ],
)
async def test_every_api_says_it_and_takes_exact(path: str, body: dict[str, Any], gateway: Any, connected: Any) -> None:
    """Whole and in the last events of a stream; ``exact`` reaches the device; where heads are never left out nothing
    is said."""
    for pruned in (None, 0, 7):

        async def left_out(agent: Any, asked: Any, pruned: int | None = pruned) -> None:
            agent.post(Accepted(asked.request, 5))
            agent.post(Delta(asked.request, 0, "Well", 1))
            agent.post(Finished(asked.request, 0, "stop", heads_pruned=pruned))
            agent.post(Done(asked.request, 5, 1))

        async with connected(gateway, left_out) as agent:
            whole = await gateway.http.post(path, json=body | {"model": "demo/model", "exact": True})
            streamed = await gateway.http.post(path, json=body | {"model": "demo/model", "stream": True})
            assert [asked.exact for asked in agent.asked] == [True, False]
        wanted = None if pruned is None else {"heads_pruned": pruned}
        assert whole.json().get("timings") == wanted
        told = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        said = [each.get("response", each).get("timings") for each in told]
        assert [each for each in said if each is not None] == ([] if wanted is None else [wanted])


def test_a_model_is_lossy_where_one_agent_prunes() -> None:
    """Any of them may get a request that does not ask for exactness; the shortest limit is told."""
    agents = [AgentRecord(str(at), "a", (model,), 1) for at, model in enumerate((PLAIN, PRUNED, PLAIN))]
    assert [model.t_max_s for model in models_served(agents)] == [1.5]
    assert [model.t_max_s for model in models_served(agents[:1])] == [0.0]


async def test_models_and_state_say_that_a_model_is_lossy(gateway: Any, connected: Any) -> None:
    """Where it is, and nothing else where it is not."""
    async with connected(gateway, models=(PRUNED, ServedModel("other", 10, 1))):
        lossy, exact = (await gateway.http.get("/v1/models")).json()["data"]
        assert lossy["lossy"] is True and lossy["t_max_s"] == 1.5
        assert "lossy" not in exact and "t_max_s" not in exact
        [agent] = (await gateway.http.get("/state")).json()["agents"]
        assert agent["lossy"] == {"t_max_s": {"demo/model": 1.5}}
    async with connected(gateway, models=(PLAIN,)):
        assert "lossy" not in (await gateway.http.get("/state")).json()["agents"][-1]
