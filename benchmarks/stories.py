"""The sentences of made-up word problems: who has what, and what happens to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

NAMES = (
    *("Ada", "Ben", "Cora", "Dan", "Ella", "Finn", "Gita", "Hugo"),
    *("Ines", "Jack", "Kira", "Leo", "Mona", "Nils", "Olga", "Paul"),
)
PLACES = ("school", "market", "library", "station", "park", "harbour", "museum", "farm")
ITEMS = (
    *("apples", "shells", "stamps", "pencils", "marbles", "cards"),
    *("books", "coins", "stickers", "candles", "beads", "plums"),
)
_LARGEST = {1: 10, 2: 50, 3: 500}
_CEILING = {1: 100, 2: 1000, 3: 10_000}
_PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 10: "a tenth"}

_BEGINNINGS = (
    "{name} has {n} {items}.",
    "{name} starts the day with {n} {items}.",
    "There are {n} {items} in a box that belongs to {name}.",
    "On Monday {name} counts {n} {items}.",
)
_ENDINGS = (
    "How many {items} does {name} have now?",
    "How many {items} are there in the end?",
    "What number of {items} is {name} left with?",
)
_DISTRACTORS = (
    "{friend} is {n} years old.",
    "The {place} is {n} miles away.",
    "{friend} has {n} {others}.",
    "It takes {n} minutes to walk to the {place}.",
    "The {place} was built {n} years ago.",
)


class Story:
    """A problem while it is being told.

    Attributes:
        rng: makes all choices.
        level: size of the numbers, 1 to 3.
        amount: how many items there are now.
        equations: `a + b = c` and so on, one per step.
        solution: a sentence with the equation for every step.
        question: the whole text, once finished.
        num_distractors: sentences that do not matter.
    """

    def __init__(self, rng: random.Random, level: int) -> None:
        self.rng = rng
        self.level = level
        self.name, *self.friends = rng.sample(NAMES, 4)
        self.items, self.others = rng.sample(ITEMS, 2)
        self.amount = self.number()
        self.equations: list[str] = []
        self.solution: list[str] = []
        self.question = ""
        self.num_distractors = 0
        self._asks_money = False
        self._told = [self._fill(rng.choice(_BEGINNINGS), n=self.amount)]

    @property
    def is_over(self) -> bool:
        """Whether the items were turned into money, after which nothing can happen to them."""
        return self._asks_money

    def number(self, most: int | None = None) -> int:
        """A number from 2 to what the level allows, or to `most` where that is less."""
        largest = _LARGEST[self.level]
        return self.rng.randint(2, largest if most is None else min(most, largest))

    def factor(self) -> int:
        """A number to multiply by that keeps the amount within the level."""
        return self.rng.randint(2, max(2, min(9, _CEILING[self.level] // self.amount)))

    def tell(self, *sentences: str, **values: object) -> None:
        """Add one of the sentences."""
        self._told.append(self._fill(self.rng.choice(sentences), **values))

    def step(self, a: int, sign: str, b: int, sentence: str, unit: str = "{items}") -> int:
        """Note an equation of the solution; returns its result."""
        result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        equation = f"{a} {sign} {b} = {result}"
        self.equations.append(equation)
        self.solution.append(self._fill(f"{sentence} {equation} {unit}."))
        return result

    def sell(self) -> None:
        """Turn the items into money."""
        price = self.rng.randint(2, 9)
        self.tell("Then {name} sells all the {items} for ${n} each.", n=price)
        self.amount = self.step(self.amount, "*", price, "{name} gets", "dollars")
        self._asks_money = True

    def finish(self, num_distractors: int) -> None:
        """Mix in sentences that do not matter and ask."""
        for sentence in self.rng.sample(_DISTRACTORS, min(num_distractors, len(_DISTRACTORS))):
            self._told.insert(
                self.rng.randint(1, len(self._told)), self._fill(sentence, n=self.number())
            )
            self.num_distractors += 1
        money = (
            "How many dollars does {name} get?",
            "How much money does {name} earn, in dollars?",
        )
        ending = self.rng.choice(money if self._asks_money else _ENDINGS)
        self.question = " ".join([*self._told, self._fill(ending)])

    def _fill(self, sentence: str, **values: object) -> str:
        return sentence.format(
            name=self.name,
            friend=self.rng.choice(self.friends),
            items=self.items,
            others=self.others,
            place=self.rng.choice(PLACES),
            **values,
        )


class Event(NamedTuple):
    """What may happen to the items.

    Attributes:
        signs: its operations, one per step of the solution.
        can_happen: whether the amount allows it.
        happen: tells it and changes the amount.
    """

    signs: str
    can_happen: Callable[[Story], bool]
    happen: Callable[[Story], None]


def events_for(story: Story, operations: str, max_steps: int) -> Sequence[Callable[[Story], None]]:
    """What may happen next with these operations in at most `max_steps` steps."""
    if story.is_over:
        return ()
    return [
        event.happen
        for event in EVENTS
        if len(event.signs) <= max_steps
        and set(event.signs) <= set(operations)
        and event.can_happen(story)
        and (event.happen is not Story.sell or len(event.signs) == max_steps)
    ]


def _gain(story: Story) -> None:
    n = story.number()
    story.tell(
        "{friend} gives {name} {n} more {items}.",
        "{name} buys another {n} {items} at the {place}.",
        "Behind the {place} {name} finds {n} more {items}.",
        n=n,
    )
    story.amount = story.step(story.amount, "+", n, "{name} then has")


def _lose(story: Story) -> None:
    n = story.number(story.amount - 1)
    story.tell(
        "{name} gives {n} of the {items} to {friend}.",
        "On the way to the {place} {name} loses {n} {items}.",
        "{n} {items} turn out to be damaged and are thrown away.",
        n=n,
    )
    story.amount = story.step(story.amount, "-", n, "There are", "{items} left")


def _multiply(story: Story) -> None:
    k = story.factor()
    story.tell(
        "A week later {name} has {n} times as many {items}.",
        "{name} goes on collecting until there are {n} times as many {items}.",
        n=k,
    )
    story.amount = story.step(story.amount, "*", k, "{name} then has")


def _share(story: Story) -> None:
    k = story.rng.choice(_divisors(story.amount))
    story.tell(
        "{name} divides the {items} equally among {n} bags and keeps only one bag.",
        "The {items} are shared equally by {n} children, {name} being one of them.",
        n=k,
    )
    story.amount = story.step(story.amount, "/", k, "The share of {name} is")


def _packs(story: Story) -> None:
    packs, size = story.rng.randint(2, 9), story.number()
    story.tell(
        "{name} buys {n} packs with {size} {items} each.",
        "For {n} days {friend} brings {name} {size} {items} a day.",
        n=packs,
        size=size,
    )
    more = story.step(packs, "*", size, "That is")
    story.amount = story.step(story.amount, "+", more, "{name} then has")


def _part(story: Story) -> None:
    k = story.rng.choice([d for d in _divisors(story.amount) if d in _PARTS])
    story.tell(
        "{name} gives {part} of the {items} to {friend}.",
        "At the {place} {name} sells {part} of the {items}.",
        part=_PARTS[k],
    )
    gone = story.step(story.amount, "/", k, "That is")
    story.amount = story.step(story.amount, "-", gone, "There are", "{items} left")


def _divisors(amount: int) -> list[int]:
    return [k for k in range(2, 11) if amount % k == 0 and amount // k >= 2]


def _may_grow(story: Story) -> bool:
    return story.amount <= _CEILING[story.level]


EVENTS = (
    Event("+", _may_grow, _gain),
    Event("-", lambda story: story.amount >= 4, _lose),
    Event("*", lambda story: story.amount * 2 <= _CEILING[story.level], _multiply),
    Event("/", lambda story: bool(_divisors(story.amount)), _share),
    Event("*+", _may_grow, _packs),
    Event("/-", lambda story: any(d in _PARTS for d in _divisors(story.amount)), _part),
    Event("*", lambda story: True, Story.sell),
)
