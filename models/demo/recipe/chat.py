"""Polite conversation: greetings, thanks, what the model is, small facts, and turns that look back."""

from __future__ import annotations

import random
from dataclasses import replace

from .facts import FACTS, Fact
from .sample import Sample, article, capital, pick
from .sample import chat as conversation
from .words import ANIMALS, COLOURS, FOODS, JOBS, THINGS, TOWNS, made_up_name, people

SKILL = "chat"
SYSTEMS = ("", "", "", "You are a helpful assistant.", "You are the demo model of Trilby.", "Be polite.", "Be brief.")

GREETINGS = [
    (["Hello!", "Hello", "hello", "Hi", "Hi!", "hi there", "Hey", "Good day", "Hello there!"],
     ["Hello! How can I help you?", "Hello! What can I do for you?"]),
    (["Good morning", "Good morning!"], ["Good morning! How can I help you?"]),
    (["Good evening", "Good evening!"], ["Good evening! How can I help you?"]),
    (["How are you?", "Hello, how are you?", "Hi! How are you today?", "How are you doing?", "How is it going?"],
     ["I am well, thank you. How can I help you?"]),
    (["Nice to meet you.", "Pleased to meet you!"], ["It is nice to meet you too. What can I do for you?"]),
]  # fmt: skip
SELF: list[Fact] = []
for _asks, _answer, _want in (
    (["Who are you?", "who are you", "What are you?", "Tell me about yourself.", "What is your name?",
      "What model are you?",
      "Are you a person?", "Are you a human?", "Can you introduce yourself?", "Please say who you are.",
      "What should I call you?", "What's your name?", "what is your name", "hello who are you", "Who am I talking to?"],
     "I am the small demo model of Trilby. I can tell stories, answer questions about a text, and do small sums.",
     "demo model of Trilby"),
    (["What can you do?", "what can you do?", "How can you help me?", "What are you able to do?",
      "What are you good at?",
      "Help", "Can you help me?", "What can I ask you?", "Show me what you can do.", "What do you know?"],
     "I can tell a short story, answer questions about a text, sum up a text, "
     "say a sentence in another way, and do small sums.",
     "story"),
    (["What is Trilby?", "Tell me about Trilby.", "What does Trilby do?", "Can you explain what Trilby is?",
      "How does Trilby work?",
      "Do you know Trilby?", "what is trilby"],
     "Trilby is a gateway that serves a language model. It splits the model between your device and the cloud.",
     "gateway"),
    (["Are you clever?", "Are you smart?", "How big are you?", "How many parameters do you have?",
      "Are you a large model?",
      "Do you know everything?"],
     "I am a very small model with about ten million parameters, so I know only a little.", "small model"),
    (["Who made you?", "Who trained you?", "How were you trained?", "Where do you come from?",
      "What were you trained on?"],
     "I was trained for Trilby on simple texts that were made by a program.", "made by a program"),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "tell me a joke"],
     "I know only one: What is grey and cannot fly? A stone.", "stone"),
    (["What is your favourite colour?", "What do you like?", "What is your favourite food?", "Do you like music?",
      "Do you have feelings?", "Are you happy?", "Do you have friends?", "How old are you?", "Where do you live?"],
     "I am only a small model, so I have no life of my own.", "small model"),
):  # fmt: skip
    SELF.extend((ask, _answer, _want) for ask in _asks)

CLOSINGS = [
    (["Thank you!", "Thanks", "Thanks a lot!", "thank you", "Thank you very much.", "Thanks for your help.",
      "That was nice, thanks."],
     ["You are welcome!", "You are welcome. Is there anything else I can do?"]),
    (["Goodbye", "Bye!", "See you later.", "Good night.", "I have to go now.", "Bye bye"],
     ["Goodbye! Have a nice day."]),
    (["That is all.", "No, that is all.", "Nothing else."], ["All right. Have a nice day!"]),
    (["Great!", "Very good.", "Well done!", "That is right.", "You are funny.", "I like you."],
     ["Thank you! I am glad to hear that."]),
    (["You are wrong.", "That is not right.", "I do not like that."],
     ["I am sorry. I am a small model and make mistakes."]),
]  # fmt: skip
Memory = tuple[list[str], str, list[str], str, str]
"""What the user tells, the reply, the later questions, their answer, and the word to look for."""


def memory(rng: random.Random) -> Memory:
    """Something the user says about himself or herself, to be asked for later."""
    name = people(rng, 1)[0][0] if rng.random() < 0.7 else made_up_name(rng)
    colour, food, town, job = pick(rng, COLOURS), pick(rng, FOODS), pick(rng, TOWNS), pick(rng, JOBS)
    kind, thing = pick(rng, ANIMALS), pick(rng, THINGS)
    age = 5 + int(rng.random() * 90)
    return pick(rng, [
        ([f"My name is {name}.", f"Hello, I am {name}.", f"Hi! My name is {name}.", f"I'm {name}.",
          f"You can call me {name}."],
         f"Hello {name}! It is nice to meet you.",
         ["What is my name?", "Do you remember my name?", "Who am I?", "Can you tell me my name?",
          "Do you know my name?"],
         f"Your name is {name}.", name),
        ([f"My name is {name}.", f"Hello, I am {name}.", f"Hi! My name is {name}.",
          f"Hello! My name is {name}. Nice to meet you."],
         f"Hello {name}! It is nice to meet you.", ["What is my name?", "Do you remember my name?", "Who am I?"],
         f"Your name is {name}.", name),
        ([f"My favourite colour is {colour}.", f"I like {colour} best of all colours.", f"I love the colour {colour}."],
         f"{capital(colour)} is a lovely colour.",
         ["What is my favourite colour?", "Which colour do I like best?", "Do you remember my favourite colour?"],
         f"Your favourite colour is {colour}.", colour),
        ([f"My favourite food is {food}.", f"I like to eat {food}.", f"I love {food}."],
         f"I have heard that {food} can be very good.",
         ["What do I like to eat?", "What is my favourite food?", "Which food do I like?"], f"You like {food}.", food),
        ([f"I live in {town}.", f"I come from {town}.", f"My home is in {town}."], f"{town} sounds like a nice place.",
         ["Where do I live?", "Which town do I live in?", "Do you remember where I live?"], f"You live in {town}.",
         town),
        ([f"I am {article(job)}.", f"I work as {article(job)}.", f"My job is to be {article(job)}."],
         f"It must be interesting to be {article(job)}.",
         ["What is my job?", "What do I do for a living?", "What do I work as?"],
         f"You are {article(job)}.", job),
        ([f"I have {article(kind)} called {name}.", f"My {kind} is called {name}."],
         f"{name} is a good name for {article(kind)}.",
         [f"What is my {kind} called?", f"What is the name of my {kind}?"], f"Your {kind} is called {name}.", name),
        ([f"I am {age} years old.", f"I'm {age} years old."], "Thank you for telling me your age.",
         ["How old am I?", "Do you remember how old I am?"], f"You are {age} years old.", str(age)),
        ([f"I lost my {thing} today.", f"Today I could not find my {thing}."], f"I am sorry about your {thing}.",
         ["What did I lose?", "What did I say I lost?"], f"You lost your {thing}.", thing),
    ])  # fmt: skip


def small_talk(rng: random.Random, facts: list[str]) -> tuple[str, str]:
    """One greeting, closing, question about the model or fact, with its answer; notes the questions of facts."""
    draw = rng.random()
    if draw < 0.2:
        asks, answers = pick(rng, GREETINGS)
        return pick(rng, asks), pick(rng, answers)
    if draw < 0.35:
        asks, answers = pick(rng, CLOSINGS)
        return pick(rng, asks), pick(rng, answers)
    if draw < 0.5:
        asked, answer, _ = pick(rng, SELF)
        return asked, answer
    asked, answer, _ = pick(rng, FACTS)(rng)
    facts.append(asked)
    return asked, answer


def make(rng: random.Random) -> Sample:
    """A conversation of one to six turns; the last answer is judged."""
    turns: list[str] = []
    facts: list[str] = []
    if rng.random() < 0.3:
        asks, answers = pick(rng, GREETINGS)
        turns += [pick(rng, asks), pick(rng, answers)]
    draw = rng.random()
    if draw < 0.4:
        told: list[Memory] = []
        for _ in range(pick(rng, [1, 1, 2, 3])):
            one = memory(rng)
            if one[2][0] not in [other[2][0] for other in told]:
                told.append(one)
                turns += [pick(rng, one[0]), one[1]]
                if rng.random() < 0.35:
                    turns += small_talk(rng, facts)
        rng.shuffle(told)
        want = ""
        for _, _, asks, answer, wanted in told[: 1 + int(rng.random() * 2)]:
            turns += [pick(rng, asks), answer]
            want = wanted
    else:
        for _ in range(pick(rng, [0, 0, 1, 2])):
            turns += small_talk(rng, facts)
        asked, answer, want = pick(rng, FACTS)(rng) if draw < 0.85 else pick(rng, SELF)
        if draw < 0.85:
            facts.append(asked)
        turns += [asked, answer]
    system = pick(rng, SYSTEMS)
    # One question alone is not held out as a conversation (everybody asks "Who are you?"), facts are by their wording.
    key = " | ".join(turns[:-1]) if len(turns) > 2 else f"alone: {len(facts)}"
    return Sample(SKILL, key, conversation(*turns, system=system), "contains", [want], facts)


def around(rng: random.Random, sample: Sample) -> Sample:
    """A sample of another skill with a bit of conversation before it, and at times a look back after it."""
    if sample.messages[0]["role"] == "system":
        return sample
    says, reply, asks, answer, _ = memory(rng)
    if rng.random() < 0.5:
        lines, answers = pick(rng, GREETINGS)
        before = [pick(rng, lines), pick(rng, answers)]
    else:
        before = [pick(rng, says), reply]
    messages = conversation(*before) + sample.messages
    if before[1] == reply and rng.random() < 0.6:
        messages += conversation(pick(rng, asks), answer)
    elif rng.random() < 0.5:
        lines, answers = pick(rng, CLOSINGS)
        messages += conversation(pick(rng, lines), pick(rng, answers))
    return replace(sample, messages=messages)
