"""Small sums: addition, subtraction and multiplication, bare and in little stories."""

from __future__ import annotations

import random

from .sample import Sample, chat, is_heldout, pick
from .words import COUNTED, people

SKILL = "sums"
BARE = ("What is {q}?", "What is {q}?", "{q}", "{q} = ?", "Calculate {q}.", "How much is {q}?", "Can you work out {q}?",
        "Please tell me what {q} is.", "what is {q}", "what's {q}?", "What's {q}?", "What does {q} make?")  # fmt: skip
WORDS = {"+": "plus", "-": "minus", "*": "times"}
STORIES = {
    "+": (
        "{A} has {a} {things} and gets {b} more. How many {things} does {A} have now?",
        "{A} has {a} {things}. {B} gives {A} {b} more. How many {things} does {A} have?",
        "There are {a} {things} in a box and {b} {things} in a bag. How many {things} are there in all?",
        "{A} has {a} {things} and {B} has {b} {things}. How many {things} do they have together?",
        "{A} found {a} {things} in the morning and {b} in the evening. How many {things} did {A} find in all?",
    ),
    "-": (
        "{A} has {a} {things} and gives {b} to {B}. How many {things} does {A} have left?",
        "There were {a} {things} on the table. {A} took {b}. How many {things} are left?",
        "{A} had {a} {things} and lost {b}. How many {things} does {A} still have?",
        "{A} has {a} {things} and {B} has {b}. How many more {things} does {A} have?",
        "A shop had {a} {things} and sold {b}. How many {things} are left?",
    ),
    "*": (
        "There are {a} boxes with {b} {things} in each. How many {things} are there in all?",
        "{A} buys {a} bags of {b} {things}. How many {things} is that?",
        "{A} puts {b} {things} on each of {a} plates. How many {things} does {A} need?",
        "Each of {a} children has {b} {things}. How many {things} do they have together?",
    ),
}


def result(a: int, op: str, b: int) -> int:
    """The value of one sum."""
    return a + b if op == "+" else a - b if op == "-" else a * b


def pair_key(a: int, op: str, b: int) -> str:
    """The name of one sum, by which it is held out or trained on."""
    return f"{a}{op}{b}"


def heldout_pair(a: int, op: str, b: int) -> bool:
    """Whether a sum is held out. Of a product and its mirror image at least one stays in training, squares too; sums
    of single digits are the steps of all others and are never held out."""
    if op == "*":
        return a > b > 1 and is_heldout(pair_key(a, op, b) + "?")
    if b < 10 and a < (10 if op == "+" else 20):
        return False
    return is_heldout(pair_key(a, op, b))


def worked(a: int, op: str, b: int) -> str:
    """A sum with its value; two-digit sums and differences are worked out ones first, as on paper,
    and a product is brought into the order of the multiplication table."""
    value = f"{a} {'x' if op == '*' else op} {b} = {result(a, op, b)}"
    if op == "*" and a > b:
        return f"{b} x {a} = {a * b}, so {value}"
    if op == "*" or (b < 10 and a < (10 if op == "+" else 20)):
        return value
    if op == "+":
        carry = (a % 10 + b % 10) // 10
        tens = f"{a // 10} + {b // 10}{' + 1' if carry else ''} = {a // 10 + b // 10 + carry}"
        return f"{a % 10} + {b % 10} = {a % 10 + b % 10}, {tens}, so {value}"
    borrow = a % 10 < b % 10
    ones = a % 10 + (10 if borrow else 0)
    tens = f"{a // 10 - borrow} - {b // 10} = {a // 10 - borrow - b // 10}"
    return f"{ones} - {b % 10} = {ones - b % 10}, {tens}, so {value}"


def draw(rng: random.Random, small: bool = False) -> tuple[int, str, int]:
    """Two numbers and a sign: up to 99 for sums and differences, up to 12 for products."""
    op = pick(rng, "++--***")
    if op == "*":
        return 1 + int(rng.random() * 12), op, 1 + int(rng.random() * 12)
    top = 30 if small else 100
    a, b = int(rng.random() * top), int(rng.random() * top)
    if op == "-" and rng.random() < 0.04:
        a = 100
    if rng.random() < 0.15:
        b = int(rng.random() * 10)
    return (max(a, b), op, min(a, b)) if op == "-" else (a, op, b)


def bare(rng: random.Random, a: int, op: str, b: int) -> tuple[str, str]:
    """A question with nothing but the sum, and its answer."""
    sign = pick(rng, ["x", "times", "*"]) if op == "*" else pick(rng, [op, op, WORDS[op]])
    shown = f"{a} {sign} {b}"
    if not sign.isalpha() and rng.random() < 0.25:
        shown = f"{a}{sign}{b}"
    return pick(rng, BARE).format(q=shown), worked(a, op, b) + "."


def story(rng: random.Random, a: int, op: str, b: int) -> tuple[str, str]:
    """A sum told as a little story, and its answer with the sum worked out."""
    (first, _), (second, _) = people(rng, 2)
    things = pick(rng, COUNTED)
    text = pick(rng, STORIES[op]).format(a=a, b=b, A=first, B=second, things=things)
    return text, f"{worked(a, op, b)}. The answer is {result(a, op, b)} {things}."


def make(rng: random.Random, heldout: bool = False) -> Sample:
    """One sum or a row of several; every sum in it is on the asked side, the last one is judged."""
    turns: list[str] = []
    count = 1 if heldout else pick(rng, [1, 2, 4, 6])
    value, key = 0, ""
    for _ in range(count):
        told = rng.random() < 0.3
        a, op, b = draw(rng, small=told)
        while heldout_pair(a, op, b) != heldout or (told and min(a, b) < 2):
            a, op, b = draw(rng, small=told)
        turns.extend(story(rng, a, op, b) if told else bare(rng, a, op, b))
        value, key = result(a, op, b), pair_key(a, op, b)
    return Sample(SKILL, key, chat(*turns), "number", [str(value)])
