"""The words the grammars share: people, animals, things, places, verbs and what is known about them."""

from __future__ import annotations

import random

from .sample import listed, pick

GIRLS = listed(
    "Mia Anna Lily Sara Nina Ella Rosa Clara Ruth Ivy Maya Zoe Emma Jane Leila Tess Nora Lucy Amy Kate Hana Olga "
    "Priya Grace Daisy Vera Alice Sofia Ines Molly",
)
BOYS = listed(
    "Tom Ben Sam Leo Max Jack Omar Paul Finn Hugo Adam Noah Peter Luke Karim Ivan Otto Felix Dan Will Henry Oscar Raj "
    "Theo Mark George Simon Marco Ali Eric",
)
COLOURS = listed("red blue green yellow white black brown grey pink purple orange golden silver")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
NUMBER_WORDS = listed("zero one two three four five six seven eight nine ten eleven twelve")

ANIMALS = listed(
    "fox rabbit bear cat dog mouse owl frog duck hen goat pig horse cow sheep squirrel hedgehog wolf deer badger "
    "turtle crow goose otter beaver donkey lion tiger elephant monkey penguin whale snail bee ant parrot dragon lamb "
    "puppy kitten",
)
OTHER_HEROES = listed(
    "robot|knight|baker|farmer|sailor|wizard|princess|prince|giant|painter|teacher|pirate|gardener|king|queen|"
    "fisherman|shepherd|ghost|snowman|little girl|little boy|old man|old woman|tailor|clockmaker|postman|cook|"
    "doctor|train driver|musician|witch|astronaut|mermaid|soldier|young boy|young girl",
    "|",
)
THINGS = listed(
    "key ball kite hat coat book lamp boat drum ring bell map basket cup box clock spoon scarf shoe glove pencil "
    "letter umbrella whistle coin doll puzzle flute lantern blanket ladder bucket rope mirror ribbon violin bicycle "
    "camera button ticket bag toy notebook bottle brush hammer chair jacket teapot compass feather shell candle",
)
FOODS = listed(
    "apples|pears|plums|bread|cheese|honey|soup|cake|pancakes|carrots|potatoes|cherries|nuts|berries|rice|eggs|"
    "tomatoes|biscuits|noodles|beans",
    "|",
)
COUNTED = listed(
    "apples pears plums eggs coins stamps books pencils shells marbles buttons cards cookies flowers stones tickets "
    "balloons stickers oranges candles",
)
PLACES = listed(
    "in the garden|in the barn|in the kitchen|in the library|in the park|in the forest|at the market|at the station|"
    "at the beach|by the river|by the lake|on the hill|under the bridge|behind the school|near the church|"
    "in the attic|in the cellar|at the harbour|in the shed|in the meadow|by the old mill|in the town hall|"
    "next to the well|under the big oak tree|in the classroom|at the bus stop|in the museum|near the castle",
    "|",
)
TOWNS = listed(
    "Ashford Milltown Greenhill Riverton Oakham Lakeside Northfield Westbridge Stonewell Fairview Applewick "
    "Sandport Elmwood Brookdale Highgate Redhill",
)
JOBS = listed(
    "baker teacher farmer doctor nurse painter tailor cook gardener driver pilot singer writer carpenter fisherman "
    "librarian builder dentist musician postman shepherd clockmaker",
)
MOODS = listed("happy sad tired proud angry nervous cheerful lonely curious hungry")
TRAITS = listed("brave shy clever kind lazy curious cheerful quiet proud patient careful friendly small old young")

MADE_UP_STARTS = listed(
    "Bar Cal Dor El Fen Gar Hol Jo Kel Lor Mar Nel Or Pel Quin Ral Sel Tor Ul Vin Wil Yor Zan Bri Tam"
)
MADE_UP_ENDS = listed("a an ben da den do en ia ik in is la lo mir na nor o on ra ric sa ta to us vo win y zel")

OPPOSITES = dict(
    pair.split("/")
    for pair in listed(
        "big/small hot/cold day/night up/down fast/slow old/new happy/sad light/dark open/closed full/empty hard/soft "
        "wet/dry early/late high/low long/short left/right strong/weak clean/dirty loud/quiet rich/poor thick/thin "
        "near/far inside/outside black/white first/last good/bad easy/difficult heavy/light young/old true/false",
    )
)
SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "sheep": "baas", "pig": "oinks",
    "horse": "neighs", "owl": "hoots", "lion": "roars", "frog": "croaks", "bee": "buzzes", "snake": "hisses",
    "wolf": "howls", "mouse": "squeaks", "hen": "clucks", "crow": "caws", "bird": "sings", "donkey": "brays",
}  # fmt: skip
THING_COLOURS = {
    "the sky on a clear day": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "a lemon": "yellow",
    "a ripe tomato": "red", "coal": "black", "the sun in a picture": "yellow", "milk": "white", "a carrot": "orange",
    "a strawberry": "red", "a leaf in summer": "green", "an elephant": "grey", "chocolate": "brown", "a frog": "green",
    "a swan": "white", "a fire engine": "red", "a flamingo": "pink",
}  # fmt: skip
YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal", "hen": "chick",
    "duck": "duckling", "goat": "kid", "bear": "cub", "lion": "cub", "deer": "fawn", "pig": "piglet",
    "goose": "gosling", "frog": "tadpole",
}  # fmt: skip
LEGS = {
    "dog": "four", "cat": "four", "cow": "four", "spider": "eight", "ant": "six", "bee": "six", "hen": "two",
    "duck": "two", "horse": "four", "snake": "no", "fish": "no", "elephant": "four", "person": "two", "beetle": "six",
}  # fmt: skip
SIMPLER = {
    "purchase": "buy", "assist": "help", "commence": "start", "enormous": "very big", "observe": "watch",
    "repair": "fix", "reply": "answer", "require": "need", "depart": "leave", "rapid": "fast", "select": "choose",
    "attempt": "try", "conceal": "hide", "construct": "build", "discover": "find", "glad": "happy",
    "frightened": "scared", "tiny": "very small", "intelligent": "smart", "residence": "home", "begin": "start",
    "shout": "yell", "quick": "fast", "wealthy": "rich", "silent": "quiet", "ancient": "very old",
}  # fmt: skip


def made_up_name(rng: random.Random) -> str:
    """A name that is in no list, so that the model learns to copy a name and not only to choose one."""
    middle = pick(rng, MADE_UP_ENDS) if rng.random() < 0.15 else ""
    return pick(rng, MADE_UP_STARTS) + middle + pick(rng, MADE_UP_ENDS)


def person(rng: random.Random) -> tuple[str, str]:
    """A name and its pronoun, "she" or "he"; three in ten names are made up."""
    she = rng.random() < 0.5
    name = made_up_name(rng) if rng.random() < 0.3 else pick(rng, GIRLS if she else BOYS)
    return name, "she" if she else "he"


def people(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Several people with different names."""
    found: dict[str, str] = {}
    while len(found) < count:
        name, pronoun = person(rng)
        found.setdefault(name, pronoun)
    return list(found.items())


HIS = {"she": "her", "he": "his", "it": "its"}
HIM = {"she": "her", "he": "him", "it": "it"}
