"""Questions answered from a paragraph, some of which the paragraph does not answer."""

from __future__ import annotations

import random

from .sample import Sample, capital, chat, pick
from .scenes import SCENES, Asked, Scene
from .words import DAYS, TOWNS, made_up_name, people

SKILL = "questions"
UNKNOWN = "The text does not say."
FRAMES = (
    "{text}\n\n{question}",
    "{text}\n\nQuestion: {question}",
    "Read the text and answer the question.\n\n{text}\n\n{question}",
    "Text: {text}\nQuestion: {question}",
    "Here is a text: {text}\n\n{question}",
    "{question}\n\n{text}",
    "Answer from this text: {text}\n\n{question}",
    "{text} {question}",
)
SYSTEMS = ("", "", "", "Answer from the text.", "You are a helpful assistant.", "Answer in one short sentence.")
FILLERS = (
    "It was a quiet {day}.", "The weather was fine.", "The sun was shining over {town}.", "It had rained all night.",
    "There was a cold wind that day.", "Many people were out that day.", "The streets of {town} were busy.",
    "Nobody knew what would happen next.", "It was an ordinary week.",
)  # fmt: skip
MISSING = (
    "How old is {name}?", "What is {name}'s favourite song?", "Who is {name}'s sister?", "What did {name} dream about?",
    "How tall is {name}?", "What is {name}'s last name?", "Who taught {name} to swim?",
    "What did {name} have for breakfast?",
    "What is {name}'s middle name?", "How much money does {name} have?",
)  # fmt: skip
STRANGER = (
    "Where does {name} live?", "What did {name} find?", "Why was {name} sad?", "What is {name}'s job?",
    "What does {name} like to eat?", "How did {name} travel?", "Where was {name} on {day}?",
)  # fmt: skip


def paragraph(rng: random.Random, scenes: int) -> tuple[str, list[Asked], list[str]]:
    """A paragraph of several scenes, the questions it answers without doubt, and the people in it."""
    cast = people(rng, scenes + 2)
    told: list[Scene] = []
    kinds = rng.sample(SCENES, min(scenes, len(SCENES)))
    for number, kind in enumerate(kinds):
        told.append(kind(rng, cast[number], cast[number + 1]))
    # A second scene for the same person makes a reader look for the right fact and not only for the name.
    rng.shuffle(told)
    sentences = [scene.text for scene in told]
    if rng.random() < 0.3:
        sentences.insert(0, pick(rng, FILLERS).format(day=pick(rng, DAYS), town=pick(rng, TOWNS)))
    asked = [one for scene in told for one in scene.asked]
    return " ".join(sentences), unambiguous(asked), [name for name, _ in cast[: scenes + 1]]


def unambiguous(asked: list[Asked]) -> list[Asked]:
    """The questions whose every wording belongs to one answer only."""
    seen: dict[str, int] = {}
    for one in asked:
        for wording in one.wordings:
            seen[wording] = seen.get(wording, 0) + 1
    return [one for one in asked if all(seen[wording] == 1 for wording in one.wordings)]


def clear(text: str, one: Asked) -> bool:
    """Whether a question that names no person points at one thing of the text only."""
    subject = one.wordings[0].rstrip("?").split()[-1]
    return not subject.islower() or text.split().count(subject) + text.split().count(subject + ".") <= 1


def missing(rng: random.Random, text: str, names: list[str]) -> Asked:
    """A question that the text does not answer."""
    if rng.random() < 0.6:
        inside = [name for name in names if name in text]
        return Asked([pick(rng, MISSING).format(name=pick(rng, inside or names))], UNKNOWN, "does not say")
    stranger = pick(rng, [made_up_name(rng), people(rng, 1)[0][0]])
    while stranger in text:
        stranger = made_up_name(rng)
    return Asked([pick(rng, STRANGER).format(name=stranger, day=pick(rng, DAYS))], UNKNOWN, "does not say")


def make(rng: random.Random) -> Sample:
    """A paragraph with one to four questions in turn; the last answer is the one that is judged."""
    text, asked, names = paragraph(rng, 1 + int(rng.random() * 5))
    asked = [one for one in asked if clear(text, one)]
    rng.shuffle(asked)
    turns: list[str] = []
    chosen = asked[: 1 + int(rng.random() * 4)]
    chosen = [missing(rng, text, names) if rng.random() < 0.12 else one for one in chosen] or [
        missing(rng, text, names)
    ]
    for number, one in enumerate(chosen):
        question = pick(rng, one.wordings)
        turns.append(pick(rng, FRAMES).format(text=text, question=question) if number == 0 else question)
        turns.append(capital(one.answer))
    return Sample(SKILL, text, chat(*turns, system=pick(rng, SYSTEMS)), "contains", [chosen[-1].want])
