"""Made-up files for `fedalign demo`: three support teams that sort their messages by different topics."""

from __future__ import annotations

import random
from pathlib import Path

from fedalign.system.files import csv_text, write_atomically

PHRASES = {
    "late delivery": (
        "the parcel is late",
        "still waiting for my order",
        "tracking has not moved",
        "courier never came",
    ),
    "damaged parcel": ("the box was crushed", "it arrived broken", "the screen is cracked", "packaging torn open"),
    "wrong item": (
        "I received another article",
        "this is not what I ordered",
        "wrong colour sent",
        "size does not match",
    ),
    "refund": ("please return my money", "I want a refund", "the amount was not credited", "cancel and pay me back"),
    "invoice": ("the invoice lacks our address", "send the bill again", "VAT number is missing", "charged twice"),
    "payment": (
        "my card was declined",
        "payment does not go through",
        "bank transfer is stuck",
        "voucher is not accepted",
    ),
    "login": ("I cannot sign in", "the password is rejected", "account is locked", "no code arrives by text message"),
    "app crash": ("the app closes at once", "it freezes on start", "error after the update", "blank page on my phone"),
}
TEAMS = {
    "warehouse": ("late delivery", "damaged parcel", "wrong item"),
    "billing": ("refund", "invoice", "payment"),
    "helpdesk": ("login", "app crash", "payment"),
}
AROUND = (
    "hello", "good morning", "since yesterday", "for a week", "thanks", "please help", "kind regards", "urgent",
    "I wrote before", "third time", "what now", "as a regular customer", "on Monday", "from Cork",
)  # fmt: skip
OTHER = "none of these"
SETTINGS = """\
# Made by `fedalign demo`. Three support teams sort their messages by different topics; together they know eight.
name = "demo"
seed = 1

[dataset]
name = "files"
path = "."                # one file per party
text = "message"
label = "topic"           # empty: nobody has looked at the message
buckets = 512             # words are hashed, so that no word leaves a team
other = "none of these"   # looked at, and none of the team's own topics
test_file = "test.csv"    # messages of no team, with all topics

[algorithm]
name = "analytic"
"""


def write(folder: Path) -> Path:
    """Writes one file per team, a test file and `fedalign.toml`; returns the latter. Always the same content."""
    draw = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    for team, topics in TEAMS.items():
        rows = [message(draw) for _ in range(160)]
        labelled = [(text, _label(topic, topics) if draw.random() < 0.7 else "") for text, topic in rows]
        write_atomically(folder / f"{team}.csv", csv_text([("message", "topic"), *labelled]))
    write_atomically(folder / "test.csv", csv_text([("message", "topic"), *(message(draw) for _ in range(160))]))
    write_atomically(folder / "fedalign.toml", SETTINGS)
    return folder / "fedalign.toml"


def _label(topic: str, topics: tuple[str, ...]) -> str:
    return topic if topic in topics else OTHER


def message(draw: random.Random) -> tuple[str, str]:
    """A message and its topic: one or two phrases of it, sometimes one of another topic, among words without one."""
    topic = draw.choice(list(PHRASES))
    parts = draw.sample(PHRASES[topic], draw.randint(1, 2)) + draw.sample(AROUND, draw.randint(2, 4))
    if draw.random() < 0.5:
        parts.append(draw.choice(PHRASES[draw.choice(list(PHRASES))]))
    draw.shuffle(parts)
    return ", ".join(parts), topic
