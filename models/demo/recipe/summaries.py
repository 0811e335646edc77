"""Longer passages about one event, and what matters in them said in one or two sentences."""

from __future__ import annotations

import random

from .sample import Sample, article, capital, chat, pick
from .stories import with_gist
from .words import COLOURS, COUNTED, DAYS, FOODS, HIS, JOBS, MONTHS, NUMBER_WORDS, PLACES, THINGS, TOWNS, people

SKILL = "summaries"
ASKS = (
    "Summarise this text:\n\n{text}", "Summarize this text in one or two sentences:\n\n{text}",
    "{text}\n\nGive me a short summary.",
    "What is this text about?\n\n{text}", "Please sum this up:\n\n{text}", "{text}\n\nSummarise this, please.",
    "Here is a text. Tell me the main point.\n\n{text}", "Make this shorter:\n\n{text}", "Summary, please:\n\n{text}",
)  # fmt: skip

AFTERWARDS = ("Sum it up, please.", "Now sum up the story.", "What is the story about?", "Summarise the story.",
              "Can you summarise that?", "Make it shorter.")  # fmt: skip

Passage = tuple[list[str], list[str], list[str], str]
"""Sentences that matter, sentences that go beside them, the words a summary needs, and the summary."""


def side(rng: random.Random, town: str) -> list[str]:
    """Sentences that a summary leaves out."""
    number, things = pick(rng, NUMBER_WORDS[3:]), pick(rng, COUNTED)
    food, colour, place = pick(rng, FOODS), pick(rng, COLOURS), pick(rng, PLACES)
    options = [
        "The weather was dry, and there was hardly any wind.",
        "It had rained in the morning, but the sky soon cleared.",
        f"Some children sold {food} {place}.",
        f"A man in a {colour} hat played the violin.".replace("a orange", "an orange"),
        f"Somebody had hung {colour} ribbons between the houses.", "Two dogs ran up and down the street and barked.",
        f"Many visitors had come from {pick(rng, [t for t in TOWNS if t != town])} by bus.",
        f"There were {number} {things} on a long table.",
        "An old woman said that she had not seen anything like it for years.",
        "People stood in small groups and talked.",
        f"A {colour} flag was waving over the roof.".replace("A orange", "An orange"),
        "Later there was hot tea for everybody.", "The church clock struck three.",
        f"Somebody took photographs {place}.",
        "A few people left early because it was getting cold.", "The younger children soon got tired.",
        f"On the way home, one boy counted {number} {things}.", "The local newspaper sent a reporter.",
        "Nobody was in a hurry.", f"The smell of fresh {food} was in the air.",
    ]  # fmt: skip
    rng.shuffle(options)
    return options


def opening_day(rng: random.Random) -> Passage:
    """Something new opens in a town."""
    town, day = pick(rng, TOWNS), pick(rng, DAYS)
    what = pick(rng, ["library", "swimming pool", "playground", "bridge", "school", "museum", "market hall", "bakery",
                      "theatre", "railway station", "garden for children"])  # fmt: skip
    who = people(rng, 1)[0][0]
    job = pick(rng, JOBS)
    number = pick(rng, NUMBER_WORDS[2:])
    main = [
        f"On {day} a new {what} opened in {town}.",
        pick(rng, [f"It took {number} years to build it.", f"The work had lasted {number} years."]),
        pick(rng, [f"{who}, {article(job)} from {town}, cut the ribbon and gave a short speech.",
                   f"The speech was given by {who}, who is {article(job)} and has always lived there."]),
    ]  # fmt: skip
    summary = pick(rng, [f"A new {what} opened in {town} on {day} after {number} years of work."])
    return main, side(rng, town), [what, town, day], summary


def contest(rng: random.Random) -> Passage:
    """Somebody wins a contest."""
    town, day = pick(rng, TOWNS), pick(rng, DAYS)
    (winner, pronoun), (second, _) = people(rng, 2)
    what = pick(rng, ["baking contest", "chess contest", "singing contest", "boat race", "bicycle race", "running race",
                      "painting contest", "swimming contest", "story contest", "gardening contest"])  # fmt: skip
    prize = f"{pick(rng, COLOURS)} {pick(rng, THINGS)}"
    main = [
        f"On {day}, the yearly {what} took place in {town}.",
        f"{capital(pick(rng, NUMBER_WORDS[4:]))} people took part, and for a long time {second} was ahead.",
        f"In the end {winner} won, and {pronoun} was given {article(prize)} as a prize.",
    ]
    summary = pick(rng, [f"{winner} won the {what} in {town} on {day} and got {article(prize)} as a prize."])
    return main, side(rng, town), [winner, what, town], summary


def rescue(rng: random.Random) -> Passage:
    """Somebody saves an animal."""
    town, day, place = pick(rng, TOWNS), pick(rng, DAYS), pick(rng, PLACES)
    (owner, _), (saver, pronoun) = people(rng, 2)
    animal = pick(rng, ["dog", "cat", "horse", "parrot", "rabbit", "goat", "donkey", "lamb", "kitten", "puppy"])
    job = pick(rng, JOBS)
    main = [
        f"On {day} morning, {owner}'s {animal} disappeared in {town}.",
        f"The neighbours looked everywhere, and {owner} put up a notice with a picture of the {animal}.",
        f"In the evening {saver}, {article(job)}, heard a noise {place}. "
        f"There {pronoun} found the {animal} and brought it home.",
    ]
    summary = pick(
        rng, [f"{owner}'s {animal} disappeared in {town}, but {saver} found it {place} and brought it home."]
    )
    return main, side(rng, town), [owner, animal, saver], summary


def plan(rng: random.Random) -> Passage:
    """A town or school plans to do something and gives the reason."""
    town, month = pick(rng, TOWNS), pick(rng, MONTHS)
    body = pick(rng, ["The town", "The school", "The mayor", "The bus company", "The library", "The museum"])
    deed, reason = pick(rng, [
        ("plant new trees along the main street", "the old ones were lost in a storm"),
        ("close the old bridge", "it is no longer safe"), ("buy new buses", "the old ones are too loud"),
        ("open a second reading room", "so many people come to read"),
        ("build a path for bicycles", "there have been too many accidents"),
        ("repair the clock on the tower", "it has stood still for a year"),
        ("start a cooking class", "many people asked for one"),
        ("give free lunch to all children", "some of them come to school hungry"),
        ("clean the river", "the fish are dying"), ("put up new street lamps", "it is too dark at night"),
    ])  # fmt: skip
    (friend, _), (critic, pronoun) = people(rng, 2)
    main = [
        pick(rng, [f"{body} in {town} plans to {deed}.", f"{body} in {town} is going to {deed}."]),
        f"This is because {reason}.",
        f"The work will begin in {month}.",
        f"{friend} called it a very good plan, but {critic} said that {pronoun} would rather wait.",
    ]
    summary = f"{body} in {town} plans to {deed} in {month} because {reason}."
    return main, side(rng, town), [town, deed, month], summary


def daytrip(rng: random.Random) -> Passage:
    """Two people go on a trip that does not go as planned."""
    town, day = pick(rng, TOWNS), pick(rng, DAYS)
    (a, _), (b, pronoun) = people(rng, 2)
    goal = pick(
        rng, ["the sea", "the mountains", "the zoo", "the old castle", "the lake", "the market", "an uncle's farm"]
    )
    trouble, ending = pick(rng, [
        ("the train broke down", "they walked the rest of the way"), ("they missed the bus", "they went by bicycle"),
        ("it began to snow", "they stayed in a small inn"), ("they lost the map", "a farmer showed them the way"),
        ("the road was closed", "they took a boat across the river"),
        ("they had forgotten their lunch", "a kind cook gave them soup"),
        ("the gate was locked", "they had a picnic outside"),
    ])  # fmt: skip
    main = [
        f"On {day}, {a} and {b} left {town} early because they wanted to see {goal}.",
        f"{b} had packed a {pick(rng, ['big', 'small', 'heavy'])} bag, and {a} carried the {pick(rng, THINGS)}.",
        f"But on the way {trouble}.",
        f"For a while {b} was angry, and {pronoun} wanted to go back.",
        f"Then they had an idea, and in the end {ending}.",
    ]
    summary = f"{a} and {b} wanted to see {goal}, but {trouble}. In the end {ending}."
    return main, side(rng, town), [a, b, trouble, ending], summary


def daily(rng: random.Random) -> Passage:
    """A person with a job and a habit, told at length."""
    town = pick(rng, TOWNS)
    name, pronoun = people(rng, 1)[0]
    he, his, job = pronoun, HIS[pronoun], pick(rng, JOBS)
    thing, food = pick(rng, THINGS), pick(rng, FOODS)
    dream = pick(rng, ["to travel round the world", "to write a book", "to have a farm", "to learn to fly",
                       "to open a small hotel", "to build a boat", "to live by the sea",
                       "to play in a band"])  # fmt: skip
    main = [
        f"{name} works as {article(job)} in {town}.",
        f"{capital(he)} gets up at {pick(rng, NUMBER_WORDS[4:8])} every morning and eats {food}.",
        f"On {his} way to work, {he} always carries a {pick(rng, ['big', 'small', 'heavy'])} {thing}.",
        f"{capital(he)} likes {his} work, but {his} great wish is {dream}.",
        f"For this {name} has been saving money for {pick(rng, NUMBER_WORDS[2:])} years.",
    ]
    return main, side(rng, town), [name, job, dream], f"{name} is {article(job)} in {town} whose great wish is {dream}."


KINDS = [opening_day, contest, rescue, plan, daytrip, daily]


def of_story(rng: random.Random) -> Sample:
    """A story and what it comes to; the story is given, or was told on request just before."""
    ask, told, gist, want = with_gist(rng)
    if rng.random() < 0.5:
        return Sample(SKILL, told, chat(pick(rng, ASKS).format(text=told), gist), "contains", want)
    return Sample(SKILL, told, chat(ask, told, pick(rng, AFTERWARDS), gist), "contains", want, [ask])


def make(rng: random.Random) -> Sample:
    """A passage with main and side sentences mixed, or a story, and its summary."""
    if rng.random() < 0.22:
        return of_story(rng)
    main, beside, want, summary = pick(rng, KINDS)(rng)
    lines = list(main)
    for extra in beside[: 5 + int(rng.random() * 6)]:
        lines.insert(1 + int(rng.random() * len(lines)), extra)
    text = " ".join(lines)
    return Sample(SKILL, text, chat(pick(rng, ASKS).format(text=text), summary), "contains", want)
