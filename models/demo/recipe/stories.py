"""Short stories: somebody wants something, something is in the way, it turns, it ends."""

from __future__ import annotations

import random

from .judge import has
from .plots import PLOTS, Plot
from .sample import Sample, article, capital, chat, mend_articles, pick
from .words import ANIMALS, COLOURS, HIM, HIS, OTHER_HEROES, PLACES, THINGS, TRAITS, made_up_name, people

SKILL = "stories"
ASKS = (
    "Tell me a story about {subject}.", "Tell me a short story about {subject}.", "Write a story about {subject}.",
    "Can you tell me a story about {subject}?", "Please write a short story about {subject}.",
    "I would like to hear a story about {subject}.", "Make up a story about {subject}.",
    "A story about {subject}, please.",
    "tell me a story about {subject}", "Write me a story about {subject}.", "Tell me about {subject}.",
    "story about {subject}",
    "Please tell me a story about {subject}.", "write a short story about {subject}",
    "Do you know a story about {subject}?",
)  # fmt: skip
GOES_ON = ("Continue this story: {start}", "Go on with this story: {start}", "How does this story go on? {start}",
           "Finish this story: {start}", "{start}\n\nWhat happens next?")  # fmt: skip
ANY = ("Tell me a story.", "Tell me a story", "Can you tell me a story?", "Please tell me a story.",
       "I want to hear a story.",
       "Tell me a short story.", "Tell me a bedtime story.", "Do you know a story?")  # fmt: skip
OPENINGS = (
    "Once upon a time there was {hero} {called} who lived {home}.",
    "{Home} there lived {hero} {called}.",
    "There was once {hero} {called}, and {home} everybody knew {him}.",
    "Long ago, {hero} {called} lived {home}.",
    "In a small house {home} lived {hero} {called}.",
)  # fmt: skip
HABITS = (
    "{Every} {he} went for a walk and said hello to everybody.", "{Every} {he} swept the floor and sang a song.",
    "{He} was {nature}, and {his} friends liked {him} for it.", "{He} was known to be {nature}.",
    "Nothing made {him} happier than a good day outside.", "{He} had a warm heart and a loud laugh.",
    "Most days were quiet there, and {he} liked it that way.", "",
    "", "{Every} {he} drank a cup of tea and looked out of the window.",
)  # fmt: skip
EVERY = ("Every morning", "Each evening", "Every day", "Each morning")
HOMES = [
    "in the forest", "by the river", "by the lake", "on the hill", "under the big oak tree", "near the church",
    "by the old mill", "in the meadow", "at the harbour", "near the castle", "behind the school", "next to the well",
    "near the sea", "at the edge of a village", "in a little town", "in the mountains", "on a green island",
    "in a deep valley", "behind a tall hedge", "in a tall tower", "at the end of a long road",
]  # fmt: skip
MORALS = (
    "From that day on, {he} never forgot it.", "{He} slept very well that night.",
    "And {he} told the story to everybody who would listen.", "It had been a good day after all.",
    "The two of them stayed friends for ever.", "{He} smiled all the way home.", "And that was the end of a long day.",
    "After that, {he} was never quite so {worry} again.", "", "",
)  # fmt: skip


def hero(rng: random.Random) -> tuple[str, str, str]:
    """A hero as a noun, a proper name and a pronoun; one noun in twenty is in no list."""
    noun = pick(rng, ANIMALS if rng.random() < 0.6 else OTHER_HEROES)
    if rng.random() < 0.06:
        noun = made_up_name(rng).lower()
    name, pronoun = people(rng, 1)[0]
    for word, right in (("girl", "she"), ("woman", "she"), ("queen", "she"), ("princess", "she"), ("hen", "she"),
                        ("boy", "he"), ("old man", "he"), ("king", "he"), ("prince", "he"), ("witch", "she"),
                        ("mermaid", "she"), ("cow", "she")):  # fmt: skip
        if noun == word or noun.endswith(" " + word):
            pronoun = right
    return noun, name, pronoun


def slots(
    rng: random.Random, noun: str, name: str, pronoun: str, thing: str, trait: str, friend: str
) -> dict[str, str]:
    """What is put into the open places of a plot's sentences."""
    fill = {
        "noun": noun, "name": name, "he": pronoun, "He": capital(pronoun), "him": HIM[pronoun], "his": HIS[pronoun],
        "His": capital(HIS[pronoun]), "thing": thing,
        "nature": pick(rng, TRAITS[:-3]) if trait in ("small", "old", "young") else trait,
        "a_thing": article(thing), "trait": trait, "friend": friend,
        "a_friend": article(friend), "place": pick(rng, PLACES), "place2": pick(rng, PLACES), "home": pick(rng, HOMES),
        "colour": pick(rng, COLOURS), "worry": pick(rng, ["worried", "afraid", "lonely", "careless", "shy"]),
        "Every": pick(rng, EVERY), "the": "" if noun == name else "the " + noun,
    }  # fmt: skip
    while fill["place2"] == fill["place"]:
        fill["place2"] = pick(rng, PLACES)
    while fill["home"] in (fill["place"], fill["place2"]):
        fill["home"] = pick(rng, HOMES)
    shown_trait = f"{trait} " if rng.random() < 0.5 else ""
    fill["hero"] = article(f"{shown_trait}{noun}") if noun != name else name
    fill["called"] = pick(rng, ["called", "named"]) + " " + name if noun != name else ""
    fill["Home"] = capital(fill["home"])
    return fill


def tell(
    rng: random.Random, plot: Plot, noun: str, name: str, pronoun: str, thing: str, trait: str, friend: str = ""
) -> list[str]:
    """The sentences of one story."""
    friend = friend or pick(rng, [word for word in ANIMALS if word != noun])
    fill = slots(rng, noun, name, pronoun, thing, trait, friend)
    lines = [pick(rng, OPENINGS), pick(rng, HABITS)]
    lines += [pick(rng, options) for options in plot.steps]
    lines += [pick(rng, MORALS)]
    told = [line.format_map(fill).replace(" ,", ",").replace(" .", ".").replace("  ", " ") for line in lines]
    told = [mend_articles(line) for line in told]
    return [capital(line) for line in told if line]


def subject_of(rng: random.Random, plot: Plot, noun: str, thing: str, trait: str) -> tuple[str, bool]:
    """How the asker names the subject, and whether the thing of the story is named in it."""
    draw = rng.random()
    if draw < 0.45:
        return f"{article(noun)} {pick(rng, plot.asks).format(a_thing=article(thing), thing=thing)}", True
    if draw < 0.6:
        return f"{article(noun)} and {article(thing)}", True
    if draw < 0.8:
        return article(f"{trait} {noun}"), False
    return article(noun), False


def with_gist(rng: random.Random) -> tuple[str, str, str, list[str]]:
    """A request, its story, what the story comes to in one sentence, and the words that sentence needs."""
    plot = pick(rng, PLOTS)
    noun, name, pronoun = hero(rng)
    thing, trait = pick(rng, THINGS), pick(rng, TRAITS)
    friend = pick(rng, [word for word in ANIMALS if word != noun])
    subject, _ = subject_of(rng, plot, noun, thing, trait)
    told = " ".join(tell(rng, plot, noun, name, pronoun, thing, trait, friend))
    gist = plot.gist.format_map(slots(rng, noun, name, pronoun, thing, trait, friend))
    return pick(rng, ASKS).format(subject=subject), told, gist, [name, thing, friend]


def make(rng: random.Random) -> Sample:
    """A story that was asked for, or the rest of a story that was begun."""
    plot = pick(rng, PLOTS)
    noun, name, pronoun = hero(rng)
    thing, trait = pick(rng, THINGS), pick(rng, TRAITS)
    draw = rng.random()
    if draw < 0.03:
        ask = pick(rng, ANY)
        return Sample(
            SKILL, "any", chat(ask, " ".join(tell(rng, plot, noun, name, pronoun, thing, trait))), "contains", []
        )
    if draw < 0.11:
        friend = pick(rng, [word for word in ANIMALS if word != noun])
        ask = pick(rng, ASKS).format(
            subject=pick(rng, [f"{article(noun)} and {article(friend)}", f"the {noun} and the {friend}"])
        )
        sentences = tell(rng, plot, noun, name, pronoun, thing, trait, friend)
        return Sample(SKILL, ask, chat(ask, " ".join(sentences)), "contains", [noun, friend])
    if draw < 0.28:
        sentences = tell(rng, plot, noun, name, pronoun, thing, trait)
        cut = 2 + int(rng.random() * 2)
        ask = pick(rng, GOES_ON).format(start=" ".join(sentences[:cut]))
        rest = " ".join(sentences[cut:])
        return Sample(SKILL, ask, chat(ask, rest), "contains", [one for one in (name, thing) if has(rest, one)][:1])
    if draw < 0.4:
        sentences = tell(rng, plot, noun, name, pronoun, thing, trait)
        ask = pick(rng, ASKS).format(
            subject=pick(rng, [f"{name} and {article(thing)}", f"{name} the {noun} and {article(thing)}"])
        )
        want = [name, thing]
    else:
        subject, named = subject_of(rng, plot, noun, thing, trait)
        sentences = tell(rng, plot, noun, name, pronoun, thing, trait)
        ask = pick(rng, ASKS).format(subject=subject)
        want = [noun, thing] if named else [noun]
        if subject.split()[1] == trait and trait not in " ".join(sentences):
            sentences[0] = sentences[0].replace(article(noun), article(f"{trait} {noun}"), 1)
    return Sample(SKILL, ask, chat(ask, " ".join(sentences)), "contains", want)
