"""Which label names look like those of people. A name of a class is shown to every party."""

from __future__ import annotations

import re

TITLES = re.compile(
    r"^(dr|mr|mrs|ms|prof|professor|herr|frau|mme|monsieur|madame|sr|sra|patient|employee)\.?\s+\w", re.I
)
LETTERS = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*\.?")
# common given names; diseases and tests named after people carry surnames, so surnames are not listed
NAMES = """
    aaron adam ahmed aisha alan albert alexander ali alice amanda amy ana andrea andrew angela anita ann anna
    anne anthony antonio arthur ayşe barbara ben benjamin bernard bob brian carl carlos carmen carol caroline
    catherine charles charlotte chen chiara chris christian christina christine christopher claire claudia
    daniel david deborah diana diego dmitri donald donna dorothy edward elena elizabeth emily emma eric erik eva
    fatima felix fernando francesca francesco francisco frank franz fritz gabriel george giovanni giulia
    giuseppe grace gustav hannah hans heinrich helen helga henry hiroshi ibrahim igor ines ingrid irene isabel
    ivan jack jacob james jan jane janet javier jean jennifer jessica jiří joan john jonas jorge jose joseph
    joshua josé juan judith julia julian jürgen karen karin karl katherine kathleen kenji kevin klaus kumar lars
    laura leon li linda lisa louis lucas lucia lucy luigi luis lukas magda manuel marco margaret maria marie
    mario mark markus martha martin mary matteo matthew max mehmet mei michael michelle miguel mohamed mohammed
    monika muhammad mustafa nadia nancy natalia natasha nicholas nicole nikolai nina noah olga oliver omar oscar
    pablo pamela patricia patrick paul paula pedro peter petra philip pierre rachel raj ravi rebecca ricardo
    richard robert roberto rosa ruth ryan samuel sandra sara sarah satoshi sergei sofia sophia sophie stefan
    stephen steven susan sven sylvia teresa thomas tim timothy tom ulrich ursula valentina victor victoria
    vladimir walter wang wei werner william wolfgang yan yuki yusuf zhang
"""
GIVEN = frozenset(NAMES.split())


def looks_like_a_person(name: str) -> bool:
    """Whether a name is a title and a word, or two to four capitalised words of which one is a common given name."""
    name = " ".join(name.replace("_", " ").split())
    if TITLES.match(name):
        return True
    words = name.replace(",", " ").split()
    if not 2 <= len(words) <= 4 or not all(LETTERS.fullmatch(word) for word in words):
        return False
    return all(word[0].isupper() for word in words) and any(word.rstrip(".").casefold() in GIVEN for word in words)
