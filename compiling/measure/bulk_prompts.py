"""Fixed prompts for the bulk measurement: typical tasks over many inputs, short and long."""

from __future__ import annotations

OUTPUT = 48  # tokens of each answer

_INSTRUCTION = (
    "Sort the message into one of: billing, delivery, damage, praise, other. Answer with the one word, then "
    "give your reason in a sentence.\n\nMessage: {}\nAnswer:"
)
_MESSAGES = (
    "The parcel came two days late, and the driver left it in the rain behind the bins.",
    "You have charged my card twice for the same pair of boots. Please give one of the sums back.",
    "One leg of the table was cracked right through when we took it out of the box.",
    "My mother is delighted with the lamp. The colour is even better than in the pictures.",
    "Is it possible to collect an order from the shop in the station instead?",
    "Invoice 20417 shows a discount of five per cent, yet ten were promised on the telephone.",
)

PROMPTS = (
    *(_INSTRUCTION.format(message) for message in _MESSAGES),
    "Q: Why do leaves change their colour in autumn?\nA:",
    "Q: How does a refrigerator keep food cold?\nA:",
    "Once upon a time, in a village at the edge of a marsh, there lived a clockmaker who",
    "Translate into French.\nEnglish: The ferry leaves at seven, unless there is fog.\nFrench:",
    "Summarise in one sentence: The council met on Tuesday and talked for three hours about the bridge. The "
    "engineers want to close it for a year, the shopkeepers for no longer than a summer. In the end it was "
    "decided to close one lane at a time, which costs a third more and takes two years.\nSummary:",
    "def median(values: list[float]) -> float:\n    ",
    "A recipe for a simple vegetable soup:\n\nIngredients:\n-",
    "Dear Ms Okafor,\n\nThank you for your application for the post of librarian. We are",
    "List the planets in order of their distance from the sun:\n1.",
    "A train leaves at 9:40 and arrives at 12:15. It stops for ten minutes on the way. It travels for",
)
