"""Composes short passages with facts, for prompts of summarization, extraction and question answering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.prompts import vocabulary as m

MONTHS = ("January", "March", "April", "May", "June", "July", "September", "October", "November")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text, its title, and questions that it answers."""

    title: str
    text: str
    questions: tuple[str, ...]


def person(rng: Random) -> str:
    return f"{rng.choice(m.FIRST_NAMES)} {rng.choice(m.LAST_NAMES)}"


def _pick(rng: Random, *options: str) -> str:
    return rng.choice(options)


def _some(rng: Random, sentences: list[str], least: int) -> str:
    """The first sentence, and some of the others in their order."""
    keep = sorted(rng.sample(range(1, len(sentences)), rng.randint(least, len(sentences) - 1)))
    return " ".join([sentences[0], *(sentences[i] for i in keep)])


def news(rng: Random) -> Passage:
    place, who, witness, day = rng.choice(m.PLACES), person(rng), person(rng), rng.choice(DAYS)
    what, cause = rng.choice(
        (
            ("a fire in a warehouse", "a faulty heater"),
            ("a flood in the old town", "three days of heavy rain"),
            ("a power cut", "a damaged cable"),
            ("a strike of bus drivers", "a dispute over pay"),
            ("the opening of a new bridge", "years of traffic jams"),
            ("a protest against rising rents", "a new housing law"),
            ("a collision between two trams", "a broken signal"),
            ("the closure of the city's largest factory", "falling orders from abroad"),
            ("an outbreak of food poisoning", "undercooked chicken at a street festival"),
            ("the theft of a famous painting", "a door that had been left unlocked"),
            ("a landslide on the coastal road", "an unusually wet winter"),
            ("the discovery of an ancient tomb", "work on a new metro line"),
        )
    )
    number, weeks, cost = rng.randint(12, 900), rng.randint(2, 20), rng.randint(2, 80)
    role = _pick(
        rng, "the mayor", "a police spokesperson", "the head of the fire service", "a city councillor"
    )
    sentences = [
        f"{what[0].upper()}{what[1:]} in {place} on {day} {_pick(rng, 'affected', 'drew the attention of')} "
        f"about {number} people, local officials said.",
        f"According to {who}, {role}, the cause was {cause}.",
        f"The damage is estimated at {cost} million euros, and repairs may take up to {weeks} weeks.",
        f'"{_pick(rng, "We did not expect this", "It could have been worse", "It all went very fast")}," '
        f"said {witness}, who lives {_pick(rng, 'nearby', 'across the street', 'two blocks away')}.",
        f"Schools in the area will {_pick(rng, 'stay closed until', 'open again on')} {rng.choice(DAYS)}.",
        f"A similar event {rng.randint(3, 30)} years ago led to new safety rules, which critics say were "
        "never enforced.",
        "Volunteers have "
        f"{_pick(rng, 'collected food and blankets', 'set up a help line', 'opened a shelter')}, and "
        f"the government of {rng.choice(m.COUNTRIES)} has offered help.",
        f"An independent report is expected in {rng.choice(MONTHS)}.",
    ]
    return Passage(
        f"{what[0].upper()}{what[1:]} in {place}",
        _some(rng, sentences, 4),
        (
            f"What happened in {place}?",
            "When did it happen?",
            "How many people were affected?",
            "What was the cause?",
        ),
    )


def biography(rng: Random) -> Passage:
    name, born, place = person(rng), rng.randint(1780, 1975), rng.choice(m.PLACES)
    job, other = rng.choice(m.JOBS), rng.choice(m.JOBS)
    last = name.split()[-1]
    work = f"The {_pick(rng, 'Silent', 'Long', 'Hidden', 'Red', 'Last', 'Open')} " + _pick(
        rng, "River", "Garden", "Hour", "Mountain", "Harbour", "Letter", "Winter", "Map"
    )
    year = born + rng.randint(24, 50)
    sentences = [
        f"{name} (born {rng.randint(1, 28)} {rng.choice(MONTHS)} {born} in {place}) was a {job} best "
        "known for "
        f"{_pick(rng, 'the book', 'the film', 'the project', 'the exhibition')} {work}.",
        f"The {_pick(rng, 'eldest', 'youngest', 'second', 'only')} child of a {other}, {last} grew up in "
        f"{rng.choice(m.PLACES)} and "
        f"{_pick(rng, 'left school at fourteen', 'studied in ' + rng.choice(m.PLACES))}.",
        f"After {rng.randint(2, 12)} years as a {rng.choice(m.JOBS)}, {last} moved to "
        f"{rng.choice(m.COUNTRIES)}.",
        f"{work} appeared in {year} and was "
        f"{_pick(rng, 'an immediate success', 'ignored at first', 'banned twice')}.",
        f"In {year + rng.randint(1, 9)}, {last} received the {rng.choice(m.PLACES)} Prize for "
        f"{_pick(rng, 'services to the public', 'lifetime achievement', 'an outstanding first work')}.",
        f"{last} was also interested in {rng.choice(m.TOPICS)} and wrote several essays about "
        f"{rng.choice(m.TOPICS)}.",
        f"Married {_pick(rng, 'twice', 'once', 'three times')}, {last} had {rng.randint(1, 6)} children.",
        f"{last} died in {rng.choice(m.PLACES)} at the age of {rng.randint(51, 97)}.",
    ]
    return Passage(
        name,
        _some(rng, sentences, 4),
        (
            f"Who was {name}?",
            f"Where was {name} born?",
            f"What is {name} best known for?",
            f"When did {work} appear?",
        ),
    )


def company(rng: Random) -> Passage:
    trade = _pick(rng, "Foods", "Motors", "Software", "Textiles", "Energy", "Logistics")
    name = f"{rng.choice(m.LAST_NAMES)} {trade}"
    revenue, change, boss = rng.randint(20, 950), rng.randint(2, 34), person(rng)
    quarter = _pick(rng, "first", "second", "third", "fourth")
    sentences = [
        f"{name}, based in {rng.choice(m.PLACES)}, reported revenue of {revenue} million dollars for the "
        f"{quarter} "
        f"quarter, {_pick(rng, 'up', 'down')} {change} percent from a year earlier.",
        f"Chief executive {boss} {_pick(rng, 'credited', 'blamed')} "
        f"{_pick(rng, 'higher energy prices', 'new customers')}"
        f"{_pick(rng, '', ' and a weak currency', ' and a mild winter', ' and its new online shop')} for "
        "the result.",
        f"The company {_pick(rng, 'plans to hire', 'will cut')} {rng.randint(40, 2500)} jobs in "
        f"{rng.choice(m.COUNTRIES)} over the next {rng.randint(2, 5)} years.",
        f"It was founded in {rng.randint(1890, 2015)} by {person(rng)} and now has {rng.randint(3, 90)} "
        "branches.",
        f"Analysts at a bank in {rng.choice(m.PLACES)} had expected {revenue + rng.randint(-30, 30)} "
        "million dollars.",
        f"Shares {_pick(rng, 'rose', 'fell')} {rng.randint(1, 14)} percent in early trading.",
        f"A new factory in {rng.choice(m.PLACES)} is due to open in {rng.choice(MONTHS)} at a cost of "
        f"{rng.randint(10, 400)} million dollars.",
    ]
    return Passage(
        name,
        _some(rng, sentences, 3),
        (f"What was the revenue of {name}?", f"Who leads {name}?", f"Where is {name} based?"),
    )


def place(rng: Random) -> Passage:
    town, country = rng.choice(m.PLACES), rng.choice(m.COUNTRIES)
    quarter = f"the {_pick(rng, 'Harbour', 'Castle', 'Market', 'River', 'Station', 'Mill')} Quarter"
    sentences = [
        f"{quarter[0].upper()}{quarter[1:]} is a district of {town} with about {rng.randint(4, 90)},000 "
        "inhabitants.",
        f"It was built in the {rng.randint(12, 19)}th century, mostly by merchants from {country}.",
        "The main sights are the "
        f"{_pick(rng, 'town hall', 'old theatre', 'clock tower', 'covered market')} of "
        f"{rng.randint(1450, 1910)} and a museum of {rng.choice(m.TOPICS)}.",
        f"Every {rng.choice(MONTHS)} a festival of "
        f"{_pick(rng, 'music', 'lanterns', 'food', 'boats', 'kites', 'books')} "
        f"brings more than {rng.randint(5, 200)},000 visitors.",
        f"Winters are {_pick(rng, 'mild and wet', 'cold and dry', 'long and snowy')}, and summers reach "
        f"{rng.randint(22, 41)} degrees.",
        f"Since {rng.randint(1960, 2019)} cars have been banned from its streets, which shopkeepers at "
        "first opposed.",
        f"The local dish is a stew of {_pick(rng, 'beans', 'fish', 'lamb', 'mushrooms')} with "
        f"{_pick(rng, 'lemon', 'saffron', 'smoked paprika', 'wild garlic', 'barley', 'chestnuts')}.",
        f"The {rng.choice(m.ANIMALS)} on its coat of arms recalls an old legend.",
    ]
    return Passage(
        f"{quarter} of {town}",
        _some(rng, sentences, 4),
        (
            f"What is {quarter} known for?",
            "How many people live there?",
            "When was it built?",
            "What is the local dish?",
        ),
    )


def study(rng: Random) -> Passage:
    topic, count, lead = rng.choice(m.TOPICS), rng.randint(40, 9000), person(rng)
    sentences = [
        f"Researchers at the University of {rng.choice(m.PLACES)} have published a new study on {topic}.",
        f"They followed {count} "
        f"{_pick(rng, 'volunteers', 'families', 'students', 'households', 'patients')} in "
        f"{rng.choice(m.COUNTRIES)} for {rng.randint(2, 15)} years.",
        "Those who "
        f"{_pick(rng, 'slept longer', 'walked daily', 'read regularly', 'ate little sugar', 'had a dog')}"
        f" were {rng.randint(8, 60)} percent less likely to report "
        f"{_pick(rng, 'stress', 'headaches', 'poor memory')}.",
        f'"The effect is {_pick(rng, "larger than we expected", "small but consistent")}," said '
        f"lead author {lead}.",
        "The authors warn that the study shows a link and not a cause.",
        "The work was paid for by "
        f"{_pick(rng, 'a public fund', 'a private foundation', 'a manufacturer')}, which had no "
        "part in the analysis.",
        f"A second trial with {rng.randint(100, 900)} participants will begin in {rng.choice(MONTHS)}.",
        f"Critics point out that {_pick(rng, 'most participants were young', 'there was no control group')}.",
    ]
    return Passage(
        f"A study on {topic}",
        _some(rng, sentences, 4),
        (
            "What did the researchers find?",
            "How many people took part?",
            f"Who is {lead}?",
            "What are the limits of the study?",
        ),
    )


def message(rng: Random) -> Passage:
    sender, receiver, day = rng.choice(m.FIRST_NAMES), rng.choice(m.FIRST_NAMES), rng.choice(DAYS)
    hour, room = rng.randint(8, 18), rng.randint(2, 40)
    sentences = [
        f"Hi {receiver}, the meeting about {rng.choice(m.TOPICS)} has been moved to {day} at "
        f"{hour}:{_pick(rng, '00', '30')}"
        f" in room {room}.",
        f"Please bring the {_pick(rng, 'budget', 'contract', 'list of guests', 'draft', 'sales figures')} "
        "and "
        f"{rng.randint(2, 12)} printed copies.",
        f"{person(rng)} from {rng.choice(m.PLACES)} will join us by phone.",
        f"We still need a decision on the {_pick(rng, 'venue', 'supplier', 'logo', 'schedule', 'price')}; "
        "my favourite is "
        f"the one for {rng.randint(100, 9900)} euros.",
        f"If you cannot come, tell {rng.choice(m.FIRST_NAMES)} before {rng.choice(DAYS)}.",
        f"You can reach me at {sender.lower()}.{rng.choice(m.LAST_NAMES).lower()}@example.com or "
        f"555-{rng.randint(1000, 9999)}.",
        f"Best regards, {sender}",
    ]
    return Passage(
        f"Message from {sender}",
        _some(rng, sentences, 4),
        (
            "When is the meeting?",
            "Who will join by phone?",
            f"What should {receiver} bring?",
            f"What does {sender} want?",
        ),
    )


def review(rng: Random) -> Passage:
    thing = _pick(
        rng,
        "headphones",
        "vacuum cleaner",
        "hotel",
        "restaurant",
        "laptop",
        "novel",
        "tent",
        "coffee machine",
    )
    sentences = [
        f"I {_pick(rng, 'bought', 'tried', 'chose')} this {thing} in {rng.choice(MONTHS)} after reading "
        "about it in "
        f"a magazine, for {rng.randint(15, 900)} dollars.",
        f"At first I was {_pick(rng, 'delighted', 'sceptical', 'disappointed', 'pleasantly surprised')}.",
        f"The {_pick(rng, 'design', 'service', 'quality', 'size', 'look')} is "
        f"{_pick(rng, 'excellent', 'average', 'poor')}, "
        f"but the {_pick(rng, 'price', 'noise', 'weight', 'manual', 'smell')} "
        f"{_pick(rng, 'bothers me', 'is fine')}.",
        f"After {rng.randint(2, 20)} weeks something "
        f"{_pick(rng, 'broke', 'got much better', 'started to rattle')}.",
        f"Customer support in {rng.choice(m.PLACES)} answered within {rng.randint(1, 9)} days and was "
        f"{_pick(rng, 'very friendly', 'of no use', 'surprisingly generous')}.",
        f"My {_pick(rng, 'wife', 'brother', 'neighbour', 'boss', 'daughter')} thinks it is "
        f"{_pick(rng, 'a bargain', 'overpriced', 'ugly', 'the best gift ever')}.",
        f"All in all I give it {rng.randint(1, 5)} out of 5 stars.",
    ]
    return Passage(
        f"Review of a {thing}",
        _some(rng, sentences, 4),
        (
            "Is the reviewer satisfied?",
            "What did it cost?",
            "What does the reviewer criticise?",
            "How many stars does it get?",
        ),
    )


KINDS: tuple[Callable[[Random], Passage], ...] = (news, biography, company, place, study, message, review)


def passage(rng: Random) -> Passage:
    return rng.choice(KINDS)(rng)
