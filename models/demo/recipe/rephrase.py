"""Saying the same thing in another way: voice, tense, politeness, simpler words, questions, opposites."""

from __future__ import annotations

import random
from collections.abc import Callable

from .sample import Sample, article, capital, chat, listed, pick
from .words import (
    ANIMALS,
    COLOURS,
    DAYS,
    JOBS,
    OTHER_HEROES,
    PLACES,
    SIMPLER,
    THINGS,
    TOWNS,
    made_up_name,
    people,
)

SKILL = "rephrase"

# base form, third person, past, participle
VERBS = [
    tuple(entry.split("/"))
    for entry in listed(
        "paint/paints/painted/painted find/finds/found/found clean/cleans/cleaned/cleaned break/breaks/broke/broken "
        "carry/carries/carried/carried open/opens/opened/opened take/takes/took/taken hide/hides/hid/hidden "
        "see/sees/saw/seen wash/washes/washed/washed buy/buys/bought/bought sell/sells/sold/sold "
        "bring/brings/brought/brought keep/keeps/kept/kept draw/draws/drew/drawn make/makes/made/made "
        "steal/steals/stole/stolen hold/holds/held/held drop/drops/dropped/dropped repair/repairs/repaired/repaired "
        "choose/chooses/chose/chosen throw/throws/threw/thrown catch/catches/caught/caught "
        "move/moves/moved/moved lose/loses/lost/lost show/shows/showed/shown",
    )
]
MEALS = [
    tuple(entry.split("/"))
    for entry in listed(
        "eat/eats/ate/eaten cook/cooks/cooked/cooked share/shares/shared/shared taste/tastes/tasted/tasted "
        "serve/serves/served/served bake/bakes/baked/baked"
    )
]
FOOD = listed("cake soup bread apple cheese pancake dinner pie fish pear egg breakfast sandwich")
HOUSEHOLD = listed("door window table house car tree wall song bag garden picture gate bed flower kitchen room")
Pair = tuple[str, str]
"""A sentence and the same sentence said in the asked way."""


class Parts:
    """A drawn sentence in parts: who does what to which thing, and where."""

    def __init__(self, rng: random.Random) -> None:
        names = people(rng, 1)[0][0]
        self.who = names if rng.random() < 0.5 else "the " + pick(rng, JOBS + ANIMALS + OTHER_HEROES)
        meal = rng.random() < 0.12
        self.base, self.now, self.past, self.done = pick(rng, MEALS if meal else VERBS)
        colour = pick(rng, COLOURS) + " " if rng.random() < 0.5 else ""
        thing = pick(rng, FOOD if meal else HOUSEHOLD if rng.random() < 0.2 else THINGS)
        if rng.random() < 0.08:
            thing = made_up_name(rng).lower()
        self.thing = f"the {colour}{thing}"
        self.where = pick(rng, ["", " " + pick(rng, PLACES), " on " + pick(rng, DAYS)])


def passive(rng: random.Random) -> Pair:
    """Active to passive."""
    p = Parts(rng)
    return capital(f"{p.who} {p.past} {p.thing}{p.where}."), capital(f"{p.thing} was {p.done} by {p.who}{p.where}.")


def active(rng: random.Random) -> Pair:
    """Passive to active."""
    said, asked = passive(rng)
    return asked, said


def to_past(rng: random.Random) -> Pair:
    """Present to past."""
    p = Parts(rng)
    where = "" if " on " in p.where and p.where.split()[-1] in DAYS else p.where
    return capital(f"{p.who} {p.now} {p.thing}{where}."), capital(f"{p.who} {p.past} {p.thing}{where}.")


def to_present(rng: random.Random) -> Pair:
    """Past to present."""
    said, asked = to_past(rng)
    return asked, said


def to_future(rng: random.Random) -> Pair:
    """Present to future."""
    p = Parts(rng)
    return (capital(f"{p.who} {p.now} {p.thing}{p.where}."), capital(f"{p.who} will {p.base} {p.thing}{p.where}."))


def negative(rng: random.Random) -> Pair:
    """A statement to its denial."""
    p = Parts(rng)
    return capital(f"{p.who} {p.past} {p.thing}{p.where}."), capital(f"{p.who} did not {p.base} {p.thing}{p.where}.")


def question(rng: random.Random) -> Pair:
    """A statement to a question."""
    p = Parts(rng)
    return capital(f"{p.who} {p.past} {p.thing}{p.where}."), f"Did {p.who} {p.base} {p.thing}{p.where}?"


def polite(rng: random.Random) -> Pair:
    """An order to a polite request."""
    p = Parts(rng)
    extra = pick(rng, ["", " to " + people(rng, 1)[0][0], " " + pick(rng, PLACES), " before " + pick(rng, DAYS)])
    base = pick(rng, ["open", "clean", "bring", "carry", "wash", "paint", "repair", "close", "move", "find", "show",
                      "fetch", "sell", "send", "give"])  # fmt: skip
    if base in ("give", "send", "show"):
        extra = " to " + people(rng, 1)[0][0]
    order = f"{base} {p.thing}{extra}"
    if rng.random() < 0.2:
        order = f"{pick(rng, ['give', 'bring', 'show', 'send', 'lend', 'fetch'])} me {p.thing}"
    said = pick(rng, [f"{capital(order)}.", f"{capital(order)}!", f"{capital(order)} now!", f"I want you to {order}."])
    return said, f"Could you please {order}?"


SIMPLE_FRAMES = {
    "purchase": "{who} will purchase {thing}{where}.", "assist": "{who} will assist {other}{where}.",
    "commence": "The lesson will commence on {day}.", "enormous": "{who} saw an enormous {bare}{where}.",
    "observe": "{who} will observe the {animal}{where}.", "repair": "{who} will repair {thing}{where}.",
    "reply": "{who} will reply on {day}.", "require": "{who} will require {thing}.",
    "depart": "The train to {town} will depart on {day}.", "rapid": "{who} saw a rapid {animal}{where}.",
    "select": "{who} will select {thing}.", "attempt": "{who} will attempt to lift {thing}.",
    "conceal": "{who} will conceal {thing}{where}.", "construct": "{who} will construct a boat{where}.",
    "discover": "{who} will discover {thing}{where}.", "glad": "{who} was glad to see {other}.",
    "frightened": "{who} was frightened of the {animal}{where}.", "tiny": "{who} saw a tiny {bare}{where}.",
    "intelligent": "{who} met an intelligent {animal}{where}.", "residence": "The residence of {other} is in {town}.",
    "begin": "The concert will begin on {day}.", "shout": "{who} will shout at {other}{where}.",
    "quick": "{who} met a quick {animal}{where}.", "wealthy": "{who} met a wealthy {job}{where}.",
    "silent": "{who} was silent{where}.", "ancient": "{who} saw an ancient {bare}{where}.",
}  # fmt: skip


def simpler(rng: random.Random) -> Pair:
    """A hard word changed for an easy one."""
    hard = pick(rng, list(SIMPLE_FRAMES))
    p, (other, _) = Parts(rng), people(rng, 1)[0]
    place = pick(rng, ["", " " + pick(rng, PLACES)])
    said = SIMPLE_FRAMES[hard].format(
        who=p.who, thing=p.thing, where=place, other=other, day=pick(rng, DAYS), town=pick(rng, TOWNS),
        animal=pick(rng, ANIMALS), bare=pick(rng, THINGS), job=pick(rng, JOBS),
    )  # fmt: skip
    easy = SIMPLER[hard]
    asked = said.replace(f"an {hard}", article(easy)).replace(f"a {hard}", article(easy)).replace(hard, easy)
    return capital(said), capital(asked)


def again(rng: random.Random) -> Pair:
    """The same sentence once more, word for word, some of its words made up."""
    p = Parts(rng)
    words = [made_up_name(rng).lower() for _ in range(2 + int(rng.random() * 4))]
    said = pick(rng, [capital(f"{p.who} {p.past} {p.thing}{p.where}."), capital(" ".join(words)) + ".",
                      capital(f"{p.who} {p.past} the {words[0]} {words[1]}{p.where}.")])  # fmt: skip
    return said, said


WAYS: list[tuple[str, Callable[[random.Random], Pair], list[str]]] = [
    ("passive", passive, ["Put this sentence into the passive: {s}", "Change this sentence to the passive voice: {s}",
                          "Make this sentence passive: {s}", "Rephrase this: {s}",
                          "Say this in another way: {s}", "Rephrase this sentence: {s}",
                          "{s}\n\nSay this in the passive."]),
    ("active", active, ["Put this sentence into the active voice: {s}", "Change this sentence to the active voice: {s}",
                        "Make this sentence active: {s}", "Rephrase this: {s}",
                        "Say this in another way: {s}", "Rephrase this sentence: {s}",
                        "{s}\n\nSay this in the active voice."]),
    ("past", to_past, ["Put this sentence into the past tense: {s}", "Change this to the past: {s}",
                       "Say this in the past tense: {s}", "{s}\n\nPut this into the past tense."]),
    ("present", to_present, ["Put this sentence into the present tense: {s}", "Change this to the present: {s}",
                             "Say this in the present tense: {s}"]),
    ("future", to_future, ["Put this sentence into the future tense: {s}", "Say this in the future: {s}",
                           "Change this to the future: {s}"]),
    ("negative", negative, ["Make this sentence negative: {s}", "Say the opposite, with \"not\": {s}",
                            "Turn this into a negative sentence: {s}"]),
    ("question", question, ["Turn this into a question: {s}", "Make a question from this sentence: {s}",
                            "Change this statement to a question: {s}"]),
    ("polite", polite, ["Say this more politely: {s}", "Make this more polite: {s}", "How can I say this politely? {s}",
                        "{s}\n\nSay it more politely, please.", "Rephrase this politely: {s}"]),
    ("simple", simpler, ["Say this in simpler words: {s}", "Make this simpler: {s}", "Use easier words: {s}",
                         "{s}\n\nSay it more simply.", "Rephrase this more simply: {s}"]),
]  # fmt: skip


def make(rng: random.Random) -> Sample:
    """One sentence to say in another way, at times with a second sentence to treat in the same way."""
    _, way, wordings = pick(rng, WAYS)
    said, asked = way(rng)
    keys = [said]
    turns = [pick(rng, wordings).format(s=said), asked]
    draw = rng.random()
    while draw < 0.45 and len(turns) < 8:
        if draw > 0.3:
            _, way, wordings = pick(rng, WAYS)
            said, asked = way(rng)
            turns += [pick(rng, wordings).format(s=said), asked]
        else:
            said, asked = way(rng)
            turns += [pick(rng, ["And this one: {s}", "Do the same with this: {s}",
                                 "Now this one: {s}"]).format(s=said),
                      asked]  # fmt: skip
        keys.append(said)
        draw = rng.random()
    return Sample(SKILL, keys[-1], chat(*turns), "exact", [asked], keys[:-1])
