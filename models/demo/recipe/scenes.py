"""Small scenes with facts in them, and the questions each scene can answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .sample import article, capital, listed, pick
from .words import (
    ANIMALS,
    COLOURS,
    COUNTED,
    DAYS,
    FOODS,
    HIS,
    JOBS,
    MONTHS,
    NUMBER_WORDS,
    PLACES,
    THINGS,
    TOWNS,
    made_up_name,
)

Person = tuple[str, str]


@dataclass
class Asked:
    """A question a scene answers: its wordings, the answer sentence and the words a right answer contains."""

    wordings: list[str]
    answer: str
    want: str


@dataclass
class Scene:
    """One or two sentences of text with the questions they answer; ``topics`` are what it tells of each person."""

    text: str
    asked: list[Asked]


SceneMaker = Callable[[random.Random, Person, Person], Scene]

GOOD_REASONS = listed(
    "{p} had won a prize|{p} had slept well|a friend had come to visit|it was {h} birthday|the holidays had begun|"
    "a letter had come from {town}|{p} had passed the test|{p} had found {h} {thing}|the sun was shining|"
    "the {animal} had come back|{p} could smell fresh {food}|{p} had got a new {thing}",
    "|",
)
BAD_REASONS = listed(
    "{p} had lost {h} {thing}|the {animal} was ill|it was raining|{p} had missed the train|the {thing} was broken|"
    "the {food} had burned|they had run out of {food}|{p} could not find {h} {thing}|the {animal} had run away|"
    "somebody had taken {h} {thing}|{p} had to wait in {town}|nobody had come to the party",
    "|",
)
HOURS = ["half past " + word for word in NUMBER_WORDS[1:]] + [word + " o'clock" for word in NUMBER_WORDS[1:]]


def clock(rng: random.Random) -> str:
    """A time of day in one of three ways of writing it."""
    if rng.random() < 0.4:
        return f"{1 + int(rng.random() * 12)}:{pick(rng, ['00', '15', '30', '45', '10', '20', '40', '50'])}"
    return pick(rng, HOURS)


def count_of(rng: random.Random) -> str:
    """A number of things, as a word or in digits."""
    return pick(rng, NUMBER_WORDS[2:]) if rng.random() < 0.5 else str(2 + int(rng.random() * 90))


def found(rng: random.Random, a: Person, b: Person) -> Scene:
    """Somebody finds, loses, sees or hides a coloured thing somewhere."""
    name = a[0]
    thing, colour, place, day = pick(rng, THINGS), pick(rng, COLOURS), pick(rng, PLACES), pick(rng, DAYS)
    past, base = pick(rng, [("found", "find"), ("lost", "lose"), ("hid", "hide"), ("saw", "see"), ("left", "leave"),
                            ("dropped", "drop"), ("painted", "paint"), ("bought", "buy")])  # fmt: skip
    what = f"{article(colour)} {thing}"
    text = pick(rng, [f"On {day}, {name} {past} {what} {place}.", f"{name} {past} {what} {place} on {day}.",
                      f"Last {day} {name} {past} {what} {place}."])  # fmt: skip
    return Scene(text, [
        Asked([f"What did {name} {base}?", f"What did {name} {base} on {day}?", f"What did {name} {base} {place}?"],
              f"{name} {past} {what}.", thing),
        Asked([f"Who {past} the {thing}?", f"Who {past} {what}?"], f"{name} {past} the {thing}.", name),
        Asked([f"Where did {name} {base} the {thing}?", f"Where did {name} {base} {what}?"],
              f"{name} {past} the {thing} {place}.", place),
        Asked([f"When did {name} {base} the {thing}?", f"On which day did {name} {base} the {thing}?"],
              f"{name} {past} the {thing} on {day}.", day),
        Asked([f"What colour was the {thing}?", f"Which colour was the {thing}?"], f"The {thing} was {colour}.",
              colour),
    ])  # fmt: skip


def work(rng: random.Random, a: Person, b: Person) -> Scene:
    """Somebody has a job and lives in a town."""
    name, pronoun = a
    job, town = pick(rng, JOBS), pick(rng, TOWNS)
    text = pick(rng, [f"{name} is {article(job)} and lives in {town}.", f"{name} lives in {town}. "
                      f"{capital(pronoun)} works there as {article(job)}.", f"{name}, {article(job)}, lives in {town}.",
                      f"In {town} there lives {article(job)} called {name}."])  # fmt: skip
    return Scene(text, [
        Asked([f"Where does {name} live?", f"In which town does {name} live?"], f"{name} lives in {town}.", town),
        Asked([f"What is {name}'s job?", f"What does {name} do for a living?", f"What does {name} work as?"],
              f"{name} is {article(job)}.", job),
        Asked([f"Who lives in {town}?"], f"{name} lives in {town}.", name),
        Asked([f"Who is {article(job)}?", f"Who works as {article(job)}?"], f"{name} is {article(job)}.", name),
    ])  # fmt: skip


def feeling(rng: random.Random, a: Person, b: Person) -> Scene:
    """Somebody feels something for a reason."""
    name, pronoun = a
    good = rng.random() < 0.5
    mood = pick(
        rng, ["happy", "cheerful", "proud", "glad"] if good else ["sad", "angry", "nervous", "worried", "unhappy"]
    )
    reason = pick(rng, GOOD_REASONS if good else BAD_REASONS).format(p=pronoun, h=HIS[pronoun],
                                                                     thing=pick(rng, THINGS), animal=pick(rng, ANIMALS),
                                       food=pick(rng, FOODS), town=pick(rng, TOWNS))  # fmt: skip
    text = pick(rng, [f"{name} was {mood} because {reason}.", f"Because {reason}, {name} was {mood}.",
                      f"{name} was very {mood} that day because {reason}."])  # fmt: skip
    return Scene(text, [
        Asked([f"Why was {name} {mood}?", f"Why was {name} so {mood}?"], f"{name} was {mood} because {reason}.",
              reason),
        Asked([f"How did {name} feel?", f"Was {name} happy or sad?"][: 1 + (mood in ("happy", "sad"))],
              f"{name} was {mood}.", mood),
        Asked([f"Who was {mood}?"], f"{name} was {mood}.", name),
    ])  # fmt: skip


def opening(rng: random.Random, a: Person, b: Person) -> Scene:
    """Something opens, starts or leaves at a time of day."""
    what, verb = pick(rng, [("shop", "opens"), ("museum", "opens"), ("market", "opens"), ("bus", "leaves"),
                            ("train", "leaves"), ("concert", "starts"), ("film", "starts"), ("lesson", "starts"),
                            ("boat", "leaves"), ("library", "closes"), ("bakery", "closes"), ("game", "ends"),
                            ("party", "ends"), ("race", "begins")])  # fmt: skip
    time, town = clock(rng), pick(rng, TOWNS)
    base = verb[:-1]
    text = pick(rng, [f"The {what} in {town} {verb} at {time}.", f"In {town}, the {what} {verb} at {time}."])
    return Scene(text, [
        Asked([f"When does the {what} {base}?", f"At what time does the {what} {base}?",
               f"What time does the {what} in {town} {base}?"], f"The {what} {verb} at {time}.", time),
        Asked([f"In which town is the {what}?", f"Where is the {what}?"], f"The {what} is in {town}.", town),
    ])  # fmt: skip


def gift(rng: random.Random, a: Person, b: Person) -> Scene:
    """One person gives, lends, sells or shows a thing to another."""
    thing, colour, place = pick(rng, THINGS), pick(rng, COLOURS), pick(rng, PLACES)
    past, base = pick(rng, [("gave", "give"), ("lent", "lend"), ("sold", "sell"), ("showed", "show"), ("sent", "send")])
    where = f" {place}" if past != "sent" and rng.random() < 0.5 else ""
    text = f"{a[0]} {past} {b[0]} {article(colour)} {thing}{where}."
    asked = [
        Asked([f"Who {past} {b[0]} the {thing}?", f"Who {past} {b[0]} {article(colour)} {thing}?"],
              f"{a[0]} {past} {b[0]} the {thing}.", a[0]),
        Asked([f"What did {a[0]} {base} {b[0]}?", f"What did {a[0]} {base} to {b[0]}?"],
              f"{a[0]} {past} {b[0]} {article(colour)} {thing}.", thing),
        Asked([f"Who got the {thing} from {a[0]}?", f"Who did {a[0]} {base} the {thing} to?"],
              f"{a[0]} {past} the {thing} to {b[0]}.", b[0]),
        Asked([f"What colour was the {thing}?"], f"The {thing} was {colour}.", colour),
    ]  # fmt: skip
    if where:
        asked.append(Asked([f"Where did {a[0]} {base} {b[0]} the {thing}?"],
                           f"{a[0]} {past} {b[0]} the {thing} {place}.", place))  # fmt: skip
    return Scene(text, asked)


def likes(rng: random.Random, a: Person, b: Person) -> Scene:
    """Somebody likes one food and not another."""
    good, bad = rng.sample(FOODS, 2)
    name, pronoun = a
    text = pick(rng, [f"{name} likes {good} but does not like {bad}.", f"{name} loves {good}. "
                      f"{capital(pronoun)} never eats {bad}.", f"{name} does not like {bad}, but "
                      f"{pronoun} likes {good} very much."])  # fmt: skip
    return Scene(text, [
        Asked([f"What does {name} like?", f"What does {name} like to eat?", f"Which food does {name} like?"],
              f"{name} likes {good}.", good),
        Asked([f"What does {name} not like?", f"Which food does {name} not like?"],
              f"{name} does not like {bad}.", bad),
        Asked([f"Who likes {good}?"], f"{name} likes {good}.", name),
    ])  # fmt: skip


def pet(rng: random.Random, a: Person, b: Person) -> Scene:
    """Somebody has an animal with a colour and a name."""
    kind, colour = (
        pick(rng, ["dog", "cat", "rabbit", "horse", "parrot", "donkey", "goat", "mouse", "duck", "pig"]),
        pick(rng, COLOURS),
    )
    called = pick(rng, listed("Rex Bella Spot Coco Rusty Pepper Biscuit Snowy Toffee Lucky Ginger Bruno"))
    called = made_up_name(rng) if rng.random() < 0.3 else called
    name = a[0]
    text = pick(rng, [f"{name} has {article(colour)} {kind} called {called}.", f"{name}'s {kind} is called {called}. "
                      f"It is {colour}.", f"{called} is a {colour} {kind} that belongs to {name}."
                      if colour != "orange" else f"{called} is an orange {kind} that belongs to {name}."])  # fmt: skip
    return Scene(text, [
        Asked([f"What is {name}'s {kind} called?", f"What is the name of {name}'s {kind}?",
               f"What is the {kind} called?"],
              f"{name}'s {kind} is called {called}.", called),
        Asked([f"What colour is {called}?", f"What colour is {name}'s {kind}?"], f"{called} is {colour}.", colour),
        Asked([f"What kind of animal is {called}?", f"What animal does {name} have?"],
              f"{called} is a {kind}.", kind),
        Asked([f"Who has a {kind}?", f"Who does {called} belong to?"], f"{name} has a {kind} called {called}.", name),
    ])  # fmt: skip


def trip(rng: random.Random, a: Person, b: Person) -> Scene:
    """Two people travel to a town in some month."""
    town, month = pick(rng, TOWNS), pick(rng, MONTHS)
    way = pick(rng, ["by train", "by bus", "by boat", "by bicycle", "by car", "on foot", "on horseback"])
    text = pick(rng, [f"In {month}, {a[0]} went to {town} {way} with {b[0]}.",
                      f"{a[0]} and {b[0]} travelled to {town} {way} in {month}."])  # fmt: skip
    went = "went" if " went " in text else "travelled"
    base = "go" if went == "went" else "travel"
    return Scene(text, [
        Asked([f"Where did {a[0]} {base}?", f"Where did {a[0]} {base} in {month}?", f"Which town did {a[0]} visit?"],
              f"{a[0]} {went} to {town}.", town),
        Asked([f"How did {a[0]} {base} to {town}?", f"How did {a[0]} get to {town}?"],
              f"{a[0]} {went} to {town} {way}.", way),
        Asked([f"Who went to {town} with {a[0]}?", f"Who did {a[0]} {base} to {town} with?"],
              f"{a[0]} {went} to {town} with {b[0]}.", b[0]),
        Asked([f"When did {a[0]} {base} to {town}?", f"In which month did {a[0]} {base} to {town}?"],
              f"{a[0]} {went} to {town} in {month}.", month),
    ])  # fmt: skip


def amount(rng: random.Random, a: Person, b: Person) -> Scene:
    """Somebody has, sold or collected a number of things."""
    things, number, place = pick(rng, COUNTED), count_of(rng), pick(rng, PLACES)
    past, base = pick(rng, [("counted", "count"), ("sold", "sell"), ("collected", "collect"), ("bought", "buy"),
                            ("packed", "pack"), ("saw", "see")])  # fmt: skip
    return Scene(f"{a[0]} {past} {number} {things} {place}.", [
        Asked([f"How many {things} did {a[0]} {base}?"], f"{a[0]} {past} {number} {things}.", f"{number} {things}"),
        Asked([f"Who {past} the {things}?", f"Who {past} {number} {things}?"], f"{a[0]} {past} the {things}.", a[0]),
        Asked([f"Where did {a[0]} {base} the {things}?"], f"{a[0]} {past} the {things} {place}.", place),
    ])  # fmt: skip


def keeping(rng: random.Random, a: Person, b: Person) -> Scene:
    """A thing is kept in a coloured box, bag or the like."""
    thing, colour = pick(rng, THINGS), pick(rng, COLOURS)
    holder = pick(rng, [word for word in ("box", "bag", "basket", "drawer", "cupboard", "chest") if word != thing])
    text = pick(rng, [f"{a[0]} keeps the {thing} in the {colour} {holder}.",
                      f"{a[0]}'s {thing} is in the {colour} {holder}."])  # fmt: skip
    return Scene(text, [
        Asked([f"Where is the {thing}?", f"Where is {a[0]}'s {thing}?", f"Where does {a[0]} keep the {thing}?"],
              f"The {thing} is in the {colour} {holder}.", f"{colour} {holder}"),
        Asked([f"What is in the {colour} {holder}?", f"What does {a[0]} keep in the {colour} {holder}?"],
              f"The {thing} is in the {colour} {holder}.", thing),
    ])  # fmt: skip


SCENES: list[SceneMaker] = [found, found, work, feeling, opening, gift, likes, pet, trip, amount, keeping]
