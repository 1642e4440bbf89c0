from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedalign.errors import UserError
from fedalign.labels import names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PHONE_IN_POCKET", ("phone", "pocket")),
        ("DRIVE_-_I_M_A_PASSENGER", ("drive", "passenger")),
        ("money-fx", ("money", "fx")),
        ("VacuumCleaning", ("vacuum", "cleaning")),
        ("Acute kidney failure, unspecified", ("acute", "kidney", "failure")),
        ("Venous catheterization, not elsewhere classified", ("venous", "catheterization")),
        ("(Aorto)coronary bypass of two coronary arteries", ("coronary", "bypass", "two", "arteries")),
        ("AT_A_BAR", ("bar",)),
        ("on", ("on",)),
    ],
)
def test_a_name_becomes_its_words(name: str, words: tuple[str, ...]) -> None:
    assert names.words_of(name) == words


def test_a_description_takes_the_names_place() -> None:
    assert names.words_of("acq", {"acq": "company acquisition"}) == ("company", "acquisition")


@pytest.mark.parametrize("name", ["Walking", "walking", " walking ", "WALKING", "walking_", "\uff57alking"])
def test_the_same_class_spelt_differently(name: str) -> None:
    assert names.normalised(name) == "walking"


@pytest.mark.parametrize("name", ["İzmir", "i\u0307zmir", "IZMIR"])
def test_a_dotted_capital_leaves_no_dot_behind(name: str) -> None:
    """Python folds it to a letter and a mark, which would end the word there."""
    assert names.words_of(name) == ("izmir",)
    assert names.normalised(name) == "izmir"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "---",
        "a\u200bb",
        "a\u202eb",
        "tab\there",
        "line\nbreak",
        "\x1b[31mred",
        "x" * 257,
        "é" * 257,
        "\ue000",
        "asthma\u3164",
        "as\ufe0fthma",
        "as\u034fthma",
        "as\u17b4thma",
        "\u115fasthma\u1160",
        "asthma\uffa0",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        names.allowed(name)
    assert str(caught.value).isprintable()  # what was refused is not printed raw


@pytest.mark.parametrize("name", ["café", "Übelkeit", "心不全", "болезнь", "naïve Bayes", "C01", "0870", "éa", "100 m"])
def test_names_of_many_languages_are_allowed(name: str) -> None:
    assert names.allowed(name) == name


@given(st.text(max_size=200))
def test_any_text_is_allowed_or_refused_with_a_printable_sentence(text: str) -> None:
    try:
        assert names.normalised(names.allowed(text))
    except UserError as error:
        assert str(error).isprintable()


def test_near_names_are_shown_with_a_reason_and_never_joined() -> None:
    parties = [["cycling", "lying", "earn"], ["bicycling", "lying down", "\u0435arn"]]
    found = names.reconcile(parties)
    assert len(found.names) == 6
    pairs = {(near.first, near.second): near.reason for near in found.near}
    assert pairs[("earn", "\u0435arn")] == "look alike"
    assert pairs[("bicycling", "cycling")] == "similar spelling"
    assert pairs[("lying", "lying down")] == "one contains the other"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("asthm\u0251", "asthma"),  # a Latin alpha
        ("asthm\u1d00", "asthma"),  # a small capital
        ("\u0561sthma", "asthma"),  # Armenian
        ("\u0585steoma", "osteoma"),
        ("\u13aasthma of the young", "gsthma of the young"),  # Cherokee
    ],
)
def test_letters_of_another_alphabet_within_a_word_are_a_disguise(name: str, other: str) -> None:
    assert [near.reason for near in names.near_pairs([name, other])] == ["look alike"]
    many = [f"class {names.as_phrase(chr(97 + i // 26) + chr(97 + i % 26))} {i}" for i in range(names.MANY)]
    assert "look alike" in {near.reason for near in names.near_pairs([*many, name, other]) if other == near.second}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("\u03b1-thalassemia", "\u03b2-thalassemia"),
        ("A\u578b\u809d\u708e", "B\u578b\u809d\u708e"),
        ("\u0431\u043e\u043b\u0435\u0437\u043d\u044c", "disease"),
    ],
)
def test_names_of_other_scripts_are_no_disguise(name: str, other: str) -> None:
    assert "look alike" not in {near.reason for near in names.near_pairs([name, other])}


def test_unrelated_names_are_not_near() -> None:
    assert names.near_pairs(["walking", "cooking", "at home", "neoplasms", "C01", "eye diseases"]) == []


def test_exact_matches_join_and_the_order_does_not_depend_on_who_speaks_first() -> None:
    first = names.reconcile([["Walking", "sitting"], ["walking", "running"]])
    second = names.reconcile([["running", "walking"], ["sitting", "WALKING"]])
    assert [names.normalised(n) for n in first.names] == [names.normalised(n) for n in second.names]
    assert first.names == ("running", "sitting", "Walking")
    assert first.index == ((2, 1), (2, 0))


def test_an_alias_table_joins() -> None:
    found = names.reconcile([["cycling"], ["Bicycling"]], {"bicycling": "cycling"})
    assert found.names == ("cycling",)
    assert found.index == ((0,), (0,))


def test_two_names_of_one_party_must_not_collide() -> None:
    with pytest.raises(UserError, match="two names for 'money fx' after normalising"):
        names.reconcile([["money-fx", "money fx"]])


def test_many_long_names_of_the_same_letters_are_compared_in_seconds() -> None:
    """A party may send 500 of them, and each pair would take a millisecond or two."""
    letters = random.Random(1)
    long = ["".join(letters.sample("abcdefghijklmnop" * 15, 240)) for _ in range(names.MANY)]
    began = time.process_time()
    names.near_pairs(long)
    assert time.process_time() - began < 8
    assert [pair.score for pair in names.near_pairs(["heart attack", "heart atack", "hip"])] == [0.96]
