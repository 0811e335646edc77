"""The few facts the model is taught, each with several ways to ask, and questions it must decline."""

from __future__ import annotations

import random

from .sample import article, capital, listed, listing, mend_articles, pick
from .words import (
    ANIMALS,
    BOYS,
    DAYS,
    GIRLS,
    LEGS,
    MONTHS,
    NUMBER_WORDS,
    OPPOSITES,
    SIMPLER,
    SOUNDS,
    THING_COLOURS,
    THINGS,
    YOUNG,
    made_up_name,
)

Fact = tuple[str, str, str]
"""A question, its answer, and the words a right answer contains."""

DECLINE = "I am a very small model, so I do not know that."
UNKNOWABLE = (
    "What is the capital of {place}?", "Who is the president of {place}?", "Who won the world cup in {year}?",
    "How many people live in {place}?", "What happened in {year}?", "What is the weather like in {place}?",
    "Who wrote the book about {name}?", "How tall is the highest mountain in {place}?", "Who invented the {thing}?",
    "What is the price of a {thing} today?", "What time is it now?", "What is the news today?",
    "Can you explain {science}?", "What is {science}?", "How does {science} work?", "Who was {name} {last}?",
    "When was {name} {last} born?", "What is the phone number of {name}?", "How do I cook {dish}?",
    "What language do people speak in {place}?",
    "What is the best film of {year}?", "Should I sell my {thing}?", "What medicine should I take for {ill}?",
    "How far is it from {place} to {place2}?", "What does {tongue} sound like?", "Who is the king of {place}?",
    "Why do {animal}s like {thing2}s?", "Where can I buy a {thing2}?", "How do I make a {thing2}?",
    "How does a {thing2} work?",
    "What is the meaning of life?", "Why is the sky blue?", "What is love?", "How fast can a {animal} run?",
    "Who is {name}?",
    "How long does a {animal} live?", "How much does a {thing2} cost?", "Which {thing2} is the best?",
    "What is a {thing2} made of?",
    "Where is {place}?", "Where is {name} {last}?", "What did {name} {last} do?", "When did {name} {last} live?",
    "Is {place} big?",
    "What should I eat today?", "What does \"{word}\" mean?", "Who lives in {place}?", "What is {word}?",
    "Why is the {thing2} broken?",
    "How many {animal}s are there in {place}?", "What is the biggest {animal} in the world?",
    "Which country is the biggest?",
    "What will the weather be like tomorrow?", "How old is {name} {last}?", "Who sings the song about {place}?",
)  # fmt: skip
UNABLE = "I am a very small model, so I cannot do that."
CANNOT = (
    "Write a poem about {topic}.", "Write an essay about {topic}.", "Write a program in {code}.",
    "Translate this into {tongue}.",
    "Draw {topic}.", "Sing a song about {topic}.", "Can you draw {topic}?", "Write an email about {topic}.",
    "Say it in {tongue}.",
    "Can you write a poem about {topic}?", "Play some music.", "Open the door.", "Buy {topic} for me.",
    "Show me a picture of {topic}.",
    "Can you speak {tongue}?", "Call my mother.", "Search the web for {topic}.", "Write a song about {topic}.",
    "Can you write a program in {code}?", "Send a message to my friend.", "Set an alarm, please.",
)  # fmt: skip
COUNTRIES = listed(
    "Peru France Japan Kenya Brazil Canada Norway India Egypt Spain Germany China Mexico Greece Chile Sweden Poland "
    "Italy Turkey Australia Paris London Rome Berlin Tokyo Europe Africa",
)
SCIENCE = listed(
    "gravity|quantum physics|electricity|a computer|the stock market|magnetism|relativity|a nuclear reactor|"
    "the internet|photosynthesis|a black hole|the human brain|chemistry|an engine|DNA|a neural network|"
    "inflation|democracy|algebra",
    "|",
)
LAST = listed("Smith Brown Miller Carter Newton Mozart Lee Garcia King Stone Baker Wood Hill")


def unknown(rng: random.Random) -> Fact:
    """A question the model cannot know the answer to, and its polite refusal."""
    place, other = rng.sample(COUNTRIES, 2)
    name = pick(rng, GIRLS + BOYS) if rng.random() < 0.7 else made_up_name(rng)
    asked = pick(rng, UNKNOWABLE).format(
        place=place, place2=other, year=1900 + int(rng.random() * 125), name=name, last=pick(rng, LAST),
        thing=pick(rng, ["telephone", "car", "house", "computer", "ticket", "light bulb", "clock", "aeroplane"]),
        science=pick(rng, SCIENCE), dish=pick(rng, ["lasagne", "a pie", "rice", "fish", "curry", "pancakes"]),
        animal=pick(rng, ANIMALS), thing2=pick(rng, THINGS), word=made_up_name(rng).lower(),
        code=pick(rng, ["Python", "Java", "C", "Rust"]), tongue=pick(rng, ["French", "Spanish", "Latin", "German"]),
        ill=pick(rng, ["a cold", "a fever", "a headache"]),
    )  # fmt: skip
    return mend_articles(asked), DECLINE, "do not know"


def beyond(rng: random.Random) -> Fact:
    """A task the model cannot do, and its polite refusal."""
    topic = pick(
        rng, [article(pick(rng, THINGS)), article(pick(rng, ANIMALS)), pick(rng, COUNTRIES), pick(rng, SCIENCE)]
    )
    asked = pick(rng, CANNOT).format(topic=topic, code=pick(rng, ["Python", "Java", "C", "Rust"]),
                                     tongue=pick(rng, ["French", "Spanish", "Latin", "German"]))  # fmt: skip
    return asked, UNABLE, "cannot do that"


def opposite(rng: random.Random) -> Fact:
    """The opposite of a common word, in either direction."""
    a, b = pick(rng, list(OPPOSITES.items()))
    if rng.random() < 0.4 and b not in OPPOSITES and list(OPPOSITES.values()).count(b) == 1:
        a, b = b, a
    asked = pick(rng, ["What is the opposite of {a}?", "What is the opposite of the word {a}?",
                       "Tell me the opposite of {a}.",
                       "Which word is the opposite of {a}?", "opposite of {a}?", "And what is the opposite of {a}?",
                       "Do you know the opposite of {a}?"])  # fmt: skip
    return asked.format(a=a), f"The opposite of {a} is {b}.", b


def sound(rng: random.Random) -> Fact:
    """What an animal's call is named."""
    a, b = pick(rng, list(SOUNDS.items()))
    asked = pick(rng, ["What sound does {a} make?", "What noise does {a} make?", "What does {a} say?",
                       "Which sound does {a} make?", "Do you know what sound {a} makes?"])  # fmt: skip
    return asked.format(a=article(a)), f"{capital(article(a))} {b}.", b


def colour(rng: random.Random) -> Fact:
    """The colour of a well-known thing."""
    a, b = pick(rng, list(THING_COLOURS.items()))
    asked = pick(rng, ["What colour is {a}?", "What color is {a}?", "Which colour is {a}?",
                       "Tell me what colour {a} is.",
                       "Can you tell me the colour of {a}?", "Do you know what colour {a} is?"])  # fmt: skip
    return asked.format(a=a), f"{capital(a)} is {b}.", b


def young(rng: random.Random) -> Fact:
    """What a young animal is called."""
    a, b = pick(rng, list(YOUNG.items()))
    asked = pick(rng, ["What is a young {a} called?", "What do you call a baby {a}?", "What is a baby {a} called?",
                       "What is the name for a young {a}?"])  # fmt: skip
    return asked.format(a=a), f"A young {a} is called {article(b)}.", b


def legs(rng: random.Random) -> Fact:
    """How many legs an animal has."""
    a, b = pick(rng, list(LEGS.items()))
    asked = pick(rng, ["How many legs does {a} have?", "Tell me how many legs {a} has.",
                       "Do you know how many legs {a} has?"])  # fmt: skip
    return asked.format(a=article(a)), f"{capital(article(a))} has {b} legs.", b


def calendar(rng: random.Random) -> Fact:
    """Days and months before and after one another."""
    names = pick(rng, [DAYS, MONTHS])
    unit = "day" if names is DAYS else "month"
    spot = int(rng.random() * len(names))
    a, after = names[spot], names[(spot + 1) % len(names)]
    if rng.random() < 0.5:
        asked = pick(rng, ["Which {u} comes after {a}?", "What {u} comes after {a}?", "What comes after {a}?",
                           "Which {u} follows {a}?"])  # fmt: skip
        return asked.format(u=unit, a=a), f"{after} comes after {a}.", after
    asked = pick(rng, ["Which {u} comes before {a}?", "What {u} comes before {a}?", "What comes before {a}?"])
    return asked.format(u=unit, a=after), f"{a} comes before {after}.", a


def lists(rng: random.Random) -> Fact:
    """The days of the week, the number of months and a few lists of their kind."""
    return pick(rng, [
        (pick(rng, ["What are the days of the week?", "Name the days of the week.",
                    "Can you list the days of the week?",
                    "Tell me the days of the week."]), f"The days of the week are {listing(DAYS)}.", "Tuesday"),
        (pick(rng, ["How many days are there in a week?", "How many days does a week have?"]),
         "There are seven days in a week.", "seven"),
        (pick(rng, ["How many months are there in a year?", "How many months does a year have?"]),
         "There are twelve months in a year.", "twelve"),
        (pick(rng, ["What are the months of the year?", "Name the months of the year.",
                    "Tell me the months of the year."]),
         f"The months of the year are {listing(MONTHS)}.", "April"),
        (pick(rng, ["What are the four seasons?", "Name the seasons.", "How many seasons are there?"]),
         "There are four seasons: spring, summer, autumn and winter.", "autumn"),
        (pick(rng, ["How many hours does a day have?", "How many hours are there in a day?"]),
         "There are 24 hours in a day.", "24"),
        (pick(rng, ["How many minutes are there in an hour?", "How many minutes does an hour have?"]),
         "There are 60 minutes in an hour.", "60"),
        (pick(rng, ["Can you count to ten?", "Count to ten.", "Count from one to ten."]),
         capital(listing(NUMBER_WORDS[1:11])) + ".", "nine"),
        (pick(rng, ["Name three colours.", "Tell me three colours.", "Can you name three colours?"]),
         "Three colours are red, blue and green.", "blue"),
        (pick(rng, ["Name three animals.", "Tell me three animals.", "Can you name three animals?"]),
         "Three animals are the dog, the horse and the owl.", "horse"),
    ])  # fmt: skip


def another_word(rng: random.Random) -> Fact:
    """An easier word for a hard one."""
    a, b = pick(rng, list(SIMPLER.items()))
    asked = pick(rng, ["What is another word for {a}?", "What does {a} mean?", "Give me an easier word for {a}.",
                       "Which easy word means {a}?"])  # fmt: skip
    return asked.format(a=f'"{a}"' if rng.random() < 0.5 else a), f'"{capital(a)}" means "{b}".', b


FACTS = [
    opposite,
    opposite,
    sound,
    colour,
    young,
    legs,
    calendar,
    calendar,
    lists,
    another_word,
    unknown,
    unknown,
    unknown,
    unknown,
    beyond,
]
