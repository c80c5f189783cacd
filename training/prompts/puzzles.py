"""Composes word problems, mathematical exercises and reasoning puzzles with random numbers."""

from __future__ import annotations

from random import Random

from training.prompts import vocabulary as m
from training.prompts.passages import DAYS


def _names(rng: Random, count: int) -> list[str]:
    return rng.sample(m.FIRST_NAMES, count)


def arithmetic(rng: Random) -> str:
    """A word problem with two or three steps."""
    a, b, c = _names(rng, 3)
    goods, others = rng.sample(m.GOODS, 2)
    x, y, z = rng.randint(2, 60), rng.randint(2, 25), rng.randint(2, 12)
    price, job, day = rng.randint(1, 40), rng.choice(m.JOBS), rng.choice(DAYS)
    return rng.choice(
        (
            f"{a} has {x} {goods}. {b} has {y} more than {a}, and {c} has twice as many as {b}. How many "
            f"{goods} do they have "
            "together?",
            f"A {job} buys {x} {goods} at ${price} each and {y} {others} at ${z} each. How much does it "
            "cost in total?",
            f"{a} bakes {x * z} {goods} and puts them into {z} boxes. {b} takes {min(x, y)} from one box. "
            "How many are left in "
            "that box?",
            f"{a} earns ${price} an hour as a {job} and works {z} hours a day, {rng.randint(3, 6)} days a "
            "week. How much does "
            f"{a} earn in {rng.randint(2, 8)} weeks?",
            f"A train travels {x * 10} kilometres in {z} hours. How far does it travel in {z + y} hours "
            "at the same speed?",
            f"On {day}, {a} read {x} pages of a book. The next day {a} read {y} pages more than that. The "
            "book has "
            f"{x * 10} pages. How many pages are left?",
            f"{a}, {b} and {c} share {x * 3} {goods} equally. {a} gives {min(y, x)} of them to {b}. How "
            f"many does {b} have now?",
            f"A shop sells {goods} at ${price} each. On {day} it gives a discount of "
            f"{rng.choice((10, 20, 25, 50))}%. How much do "
            f"{x} {goods} cost on that day?",
            f"{a} is {x} years old. {b} is {y} years older than {a}. In {z} years, what will be the sum "
            "of their ages?",
            f"A tank holds {x * 20} litres. It loses {y} litres an hour. How much is left after {z} hours?",
            f"{a} saves ${price} every week. After {x} weeks {a} buys {z} {goods} for ${price} each. How "
            "much money is left?",
            f"There are {x * 4} students in a school. {rng.choice((25, 50, 75))}% of them take the bus, "
            "and the rest walk. How "
            "many walk?",
            f"A recipe for {z} people needs {y} {goods}. How many are needed for {z * rng.randint(2, 6)} "
            "people?",
            f"{a} runs {z} kilometres every {day} and {y} kilometres on each other day. How far does {a} "
            "run in "
            f"{rng.randint(2, 9)} weeks?",
            f"A farmer has {x + z} cows and {y} chickens. How many legs are there altogether, and how many "
            f"after selling {z} cows?",
            f"{a} has ${x * 5}. {a} spends half of it on {goods} and ${min(z, x)} on {others}. How much "
            "is left?",
        )
    )


def mathematics(rng: Random) -> str:
    """An exercise: algebra, geometry, probability, numbers."""
    a, b, c = rng.randint(2, 15), rng.randint(2, 40), rng.randint(2, 99)
    return rng.choice(
        (
            f"Solve for x: {a}x + {b} = {a * rng.randint(2, 12) + b}.",
            f"Solve for x: {a}x - {b} = {c}.",
            f"What is {b} times {c}?",
            f"What is {rng.choice((5, 10, 15, 20, 25, 30))}% of {c * 10}?",
            f"Find the area and the perimeter of a rectangle with sides {a} and {b}.",
            f"A circle has a radius of {a} cm. What is its area?",
            f"What is the probability of drawing {rng.randint(1, 3)} red balls in a row from a bag of {a} "
            f"red and {b} blue balls?",
            f"If f(x) = {a}x^2 + {b}x - {c}, what is f({rng.randint(1, 9)})?",
            f"Find the derivative of {a}x^3 - {b}x + {c}.",
            f"Is {c * a + 1} a prime number? Explain.",
            f"What is the greatest common divisor of {a * 6} and {b * 6}?",
            f"Solve the system: x + y = {b + a}, x - y = {b - a}.",
            f"What are the next three numbers in the sequence {a}, {a + b}, {a + 2 * b}, {a + 3 * b}?",
            f"Simplify the expression ({a}x + {b}) - ({c} - x).",
            f"The vertices of a triangle are (0, 0), ({a}, 0) and (0, {b}). What is its area?",
            f"How many ways are there to choose {rng.randint(2, 3)} people out of {a + 3}?",
            f"Solve the inequality {a}x + {b} < {c + b}.",
            f"What is the remainder when {c * 7} is divided by {a}?",
            f"Convert {c} from base 10 to base {rng.choice((2, 3, 5, 8))}.",
            f"What is the average of {a}, {b}, {c} and {a + c}?",
        )
    )


def reasoning(rng: Random) -> str:
    """A puzzle about order, family, cause or common sense."""
    a, b, c = _names(rng, 3)
    first, second = rng.sample(m.EVERYDAY, 2)
    animal, other = rng.sample(m.ANIMALS, 2)
    job, day, topic = rng.choice(m.JOBS), rng.choice(DAYS), rng.choice(m.TOPICS)
    what = rng.choice(("taller", "older", "faster", "richer", "louder", "stronger"))
    return rng.choice(
        (
            f"{a} is {what} than {b}. {b} is {what} than {c}. Is {a} {what} than {c}? Explain.",
            f"In a race, {a} overtakes {b}, who was in place {rng.randint(2, 6)}. Which place is {a} in now?",
            f"{a} has {rng.randint(2, 6)} brothers, and each brother has {rng.randint(1, 3)} sisters. How "
            f"many sisters has {a}?",
            f"If all {animal}s are strong and some strong animals are slow, are some {animal}s slow? "
            "Explain your reasoning.",
            f"Which word does not belong: {animal}, {other}, {job}, {rng.choice(m.ANIMALS)}? Explain.",
            f"{a}, {b} and {c} sit in a row. {a} is not next to {b}. {c} is left of {b}. Who sits in the "
            "middle?",
            f"If it is {day} today, which day will it be in {rng.randint(5, 60)} days?",
            f"What would happen if every {job} in the world stopped working tomorrow? Think step by step.",
            f"Give arguments for and against {first}.",
            f"Which is better, {first} or {second}? Decide and justify your choice.",
            f"A {job} says: 'I never tell the truth about {topic}.' Can this be true?",
            f"{a} leaves home at {rng.randint(6, 11)}:15 and arrives {rng.randint(25, 170)} minutes "
            f"later. When does {a} arrive?",
            f"You have {rng.randint(2, 4)} ropes that each burn for {rng.choice((30, 60))} minutes. How "
            "can you measure 45 minutes?",
            f"{a} put a coin under a cup, and {b} moved it into a drawer while {a} was away. Where will "
            f"{a} look for it first?",
            f"What is the most likely reason that a {job} carries a picture of a {animal}?",
            f"Sort these from smallest to largest and explain: a {animal}, a {other}, a grain of sand, a "
            "bus.",
            f"What could be the cause if a {animal} suddenly avoids its food? List possibilities in order "
            "of likelihood.",
        )
    )
