"""The plots of the short stories: for each step of a plot, several sentences to choose from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Plot:
    """How a plot is asked for after "a fox ...", what it comes to, and its steps: want, obstacle, turn, ending."""

    asks: list[str]
    gist: str
    steps: list[list[str]]


LOST = Plot(
    ["who loses {a_thing}", "who lost {a_thing}", "who cannot find the {thing}"],
    "{name} the {noun} lost {his} {thing} and found it again with the help of {a_friend}.",
    [
        ["One day {name} lost {his} {thing}.", "One morning {name} saw that {his} {colour} {thing} was gone.",
         "One windy day {name} reached for {his} {thing}, but the {thing} was not there."],
        ["{He} looked {place}, but {he} found only leaves and dust.",
         "{He} searched {place} and {place2}, but it was nowhere to be seen.",
         "{He} looked under the bed, behind the door and even {place}. Nothing!"],
        ["{name} sat down and began to cry, because the {thing} had been a present.",
         "\"I need my {thing},\" said {name}. \"What shall I do?\"",
         "Without the {thing}, {name} could not go on with {his} work."],
        ["Then {a_friend} came by and asked, \"Why are you so sad?\"",
         "Just then {a_friend} looked over the fence and offered to help.",
         "A kind {friend} heard {him} and said, \"Let us look together.\""],
        ["Together they went back the way {name} had come, and there lay the {thing} {place2}.",
         "The {friend} had sharp eyes and soon saw the {thing} {place2}.",
         "They looked {place2}, and under a heap of leaves they found the {thing}."],
        ["{name} thanked the {friend} and shared {his} supper that evening.",
         "{name} was so glad that {he} danced in a circle with the {friend}.",
         "\"Thank you,\" said {name}, and {he} held the {thing} tight all the way home."],
    ],
)  # fmt: skip
FOUND = Plot(
    ["who finds {a_thing}", "who found {a_thing}", "who discovers {a_thing}"],
    "{name} the {noun} found {a_thing} and gave it back to {a_friend}.",
    [
        ["One day {name} found {a_thing} {place}.",
         "On a bright morning, {name} saw something {colour} {place}. It was {a_thing}.",
         "While {he} was walking, {name} found a {colour} {thing} lying {place}."],
        ["{name} wanted to keep the {thing}, but {he} knew that it belonged to somebody.",
         "\"Who can have lost this {thing}?\" {name} asked.",
         "It was the finest {thing} {he} had ever seen, and {he} wished it were {his} own."],
        ["{He} asked everybody {place2}, but nobody knew whose it was.",
         "{He} knocked on every door, but everybody shook their heads.",
         "{name} waited there until noon, but nobody came for it."],
        ["At last {he} met {a_friend} who was looking at the ground and crying.",
         "Then {name} heard {a_friend} say, \"Oh, where is my {thing}?\"",
         "In the evening {a_friend} came running and asked for a lost {thing}."],
        ["\"Is this yours?\" asked {name}, and held out the {thing}.", "{name} gave the {thing} back at once.",
         "It was hard to let the {thing} go, but {name} gave it back."],
        ["The {friend} was so thankful that they became best friends.",
         "The {friend} laughed with joy and asked {name} to stay for tea.",
         "The next day the {friend} brought {name} a little {thing} as a present."],
    ],
)  # fmt: skip
MAKE = Plot(
    ["who wants {a_thing}", "who wishes for {a_thing}", "who makes {a_thing}", "who needs {a_thing}"],
    "{name} the {noun} wanted {a_thing} and made one with the help of {a_friend}.",
    [
        ["More than anything, {name} wanted {a_thing}.",
         "{name} had only one wish: {he} wanted {a_thing} of {his} own.",
         "Every night {name} dreamed of a {colour} {thing}."],
        ["But {a_thing} cost too much, and {name} had no money at all.",
         "There was only one {thing} in the shop, and it was far too dear.",
         "But nobody {place} had {a_thing} to give away."],
        ["{He} tried to make one from wood, but it fell apart.",
         "{He} tried to make one alone, but it came out crooked.",
         "{He} worked for three days, and still it did not look right."],
        ["Then {a_friend} said, \"If you help me in the garden, I will show you how it is done.\"",
         "An old {friend} watched {him} and said, \"Go slowly, and begin again.\"",
         "{name} was about to give up when {a_friend} brought new paint and good advice."],
        ["So they worked side by side {place2} until the sun went down.",
         "{name} listened well and tried once more.", "Step by step, with the help of the {friend}, it grew."],
        ["In the end {name} had the best {thing} of all, because {he} had made it with a friend.",
         "When it was done, the {thing} shone in the evening light, and {name} was very proud.",
         "At last the {thing} was ready, and {name} showed it to everybody."],
    ],
)  # fmt: skip
BROKEN = Plot(
    ["who breaks {a_thing}", "with a broken {thing}", "who broke {a_thing}"],
    "{name} the {noun} broke {a_thing} that belonged to {a_friend} and told the truth.",
    [
        ["One day {name} wanted to show {his} {friend} friend a beautiful {thing}.",
         "{name} had borrowed {a_thing} from {a_friend} and promised to take care of it.",
         "The {friend} next door owned a {colour} {thing} and let {name} play with it."],
        ["But {he} tripped on a stone, and the {thing} broke in two.", "But the {thing} fell on the floor and broke.",
         "But {name} was in a hurry, and with a crack the {thing} broke."],
        ["{name} hid the pieces {place} and said nothing.", "At first {name} was afraid to tell the truth.",
         "{name} wanted to run away and hide {place}."],
        ["All night {he} lay awake and thought about it.", "But the longer {he} waited, the worse {he} felt.",
         "\"A lie will only make it worse,\" {he} thought."],
        ["In the morning {name} went to the {friend} and told the whole truth.",
         "So {he} took a deep breath, went to the {friend} and said, \"I am sorry. I broke it.\""],
        ["The {friend} was quiet for a moment and then said, \"Thank you for telling me.\" "
         "Together they mended the {thing}.",
         "The {friend} smiled, found some glue, and soon the {thing} was as good as new.",
         "\"It is only {a_thing},\" said the {friend}. \"A friend is worth more.\""],
    ],
)  # fmt: skip
STORM = Plot(
    ["in a storm with {a_thing}", "who is lost in the dark with {a_thing}", "who carries {a_thing} through the rain"],
    "{name} the {noun} got lost in bad weather with {a_thing} and was helped by {a_friend}.",
    [
        ["One evening {name} wanted to bring {a_thing} to {a_friend} who lived {place}.",
         "One autumn day {name} took {his} {thing} and set out to visit {a_friend} {place}."],
        ["On the way dark clouds came up, and soon the rain was so thick that {name} could not see the path.",
         "But a storm came over the hill, and the wind pulled at everything.",
         "Then fog rolled in, and {he} did not know which way to go."],
        ["{name} was afraid, but {he} held on to the {thing} and kept walking.",
         "{He} called for help, but only the wind answered.", "{He} stopped under a tree and shook with cold."],
        ["Then {he} had an idea and used the {thing} to make as much noise as {he} could.",
         "Then {he} lifted the {colour} {thing} high above {his} head, so that it could be seen from far away.",
         "Then {he} put the {thing} on a branch to mark the way and went on slowly."],
        ["The {friend} noticed it and came with a light.", "Far away, the {friend} saw it and hurried over.",
         "It worked: a small light came nearer, and behind it was the {friend}."],
        ["Soon they were sitting by a warm fire, and the {thing} had a place of honour on the table.",
         "They drank hot soup together and laughed about the storm and the {thing}.",
         "That night they slept safely {place2}, with the {thing} between them."],
    ],
)  # fmt: skip
LEARN = Plot(
    ["who learns to share {a_thing}", "who will not share {a_thing}", "who shares {a_thing}"],
    "{name} the {noun} would not share {a_thing}, felt lonely and then shared it with {a_friend}.",
    [
        ["{name} had a {colour} {thing} and did not let anybody touch it.",
         "For {his} birthday {name} got {a_thing}, and {he} wanted to keep it away from the others.",
         "The thing {name} loved most was {his} {thing}."],
        ["One day {a_friend} asked, \"May I use it for a little while?\" But {name} said no.",
         "When {a_friend} asked to hold the {thing}, {name} turned away.",
         "The others wanted to play too, but {name} shook {his} head."],
        ["So the {friend} went away, and {name} sat alone {place}.",
         "The {friend} was sad and went to play {place} without {him}.",
         "Soon nobody asked any more, and it became very quiet {place}."],
        ["After a while even the best {thing} is no fun alone, and {name} felt lonely.",
         "{name} heard the others laugh {place2}, and all at once the {thing} did not seem so fine.",
         "{name} looked at the {thing} and sighed."],
        ["So {he} went to the {friend} and said, \"Let us use it together.\"",
         "{He} picked up the {thing}, ran to the {friend} and said, \"I am sorry. You can have the first turn.\""],
        ["They played until the stars came out, and it was twice as much fun as before.",
         "The {friend} was happy, and {name} was even happier.",
         "From then on the {thing} belonged to both of them."],
    ],
)  # fmt: skip
RACE = Plot(
    ["who wins {a_thing}", "who wants to win {a_thing}", "in a race for {a_thing}"],
    "{name} the {noun} won {a_thing} in a race against {a_friend}.",
    [
        ["One summer there was a race, and the prize was {a_thing}.",
         "A sign {place} said: \"Big race on Sunday! The winner gets a {colour} {thing}.\""],
        ["{name} wanted to win, but {he} was the slowest of all.",
         "{name} wanted the {thing} very much, but {a_friend} was much faster.",
         "Everybody laughed when {name} said that {he} would run."],
        ["Still, {he} practised every morning {place2}.", "So {name} got up early each day and ran {place2}.",
         "{name} did not listen to them and practised until {his} legs hurt."],
        ["On the day of the race, the {friend} ran ahead and then lay down to rest.",
         "Halfway through the race, the {friend} fell into a ditch.",
         "In the middle of the race, the {friend} took the wrong path."],
        ["{name} could have gone on alone, but {he} stopped and helped the {friend} first.",
         "{name} called out to the {friend}, and then they ran on side by side.",
         "{name} went on, step by step, and never stopped."],
        ["In the end {name} was faster than the {friend}, and everybody cheered as {he} got the {thing}.",
         "{name} won the {thing}, and the first thing {he} did was to show it to the {friend}."],
    ],
)  # fmt: skip
SECRET = Plot(
    ["and a magic {thing}", "who has a magic {thing}", "who finds a magic {thing}"],
    "{name} the {noun} got a magic {thing} and used the wish to help {a_friend}.",
    [
        ["One day an old {friend} gave {name} a magic {thing}.",
         "In a dusty corner {place}, {name} found a magic {thing}."],
        ["\"It will grant one wish,\" a voice said, \"but only one.\"",
         "When {he} touched it, the {thing} began to glow and said, \"Make a wish!\""],
        ["{name} thought of gold, of cake and of a big house, but could not decide.",
         "{name} wanted to wish for a mountain of cake.",
         "{name} had a hundred wishes and did not know which to choose."],
        ["Then {he} saw {a_friend} who was cold and had no home.",
         "But {place2} {he} met {a_friend} who had been ill for a long time.",
         "Just then {a_friend} came by who had not eaten for two days."],
        ["{name} did not think for long. \"I wish that my friend may be well and happy,\" {he} said.",
         "So {name} held the {thing} and wished for something good for the {friend}."],
        ["The {thing} flashed once and became an ordinary {thing}, but the {friend} was smiling.",
         "The light of the {thing} went out, and the {friend} jumped for joy. {name} had never been happier."],
    ],
)  # fmt: skip
PLOTS: list[Plot] = [LOST, LOST, FOUND, MAKE, BROKEN, STORM, LEARN, RACE, SECRET]
