"""What `fedalign labels count` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from fedalign.runs.display import note, output

if TYPE_CHECKING:
    from fedalign.labels.corpus.cooccurrence import Outcome
    from fedalign.labels.corpus.proposals import Proposals

SHOWN = 10  # unreadable files that are listed on the screen


def print_counts(outcome: Outcome, seconds: float, proposals: Proposals) -> None:
    """Prints how often each name occurs, what was not read, and words to add for names that never occur."""
    from rich.table import Table

    counted = outcome.counts
    shown = Table(title="segments with each name", title_justify="left")
    for column in ("name", "searched as", "segments", "together with"):
        shown.add_column(column, overflow="fold")
    partners = [0] * len(counted.counts)
    for i, j, _ in counted.pairs:
        partners[i] += 1
        partners[j] += 1
    for name, ways, number, others in zip(counted.rule.names, counted.rule.ways, counted.counts, partners, strict=True):
        words = " | ".join(" ".join(way.words) for way in ways)
        shown.add_row(escape(name), escape(words), f"{number:,}", f"{others} names")
    output.print(shown)
    for name, reason in outcome.unreadable[:SHOWN]:
        note(f"skipped {name}: it {reason}")
    if len(outcome.unreadable) > SHOWN:
        note(f"and {len(outcome.unreadable) - SHOWN:,} more were skipped")
    if outcome.ignored:
        kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in outcome.ignored.most_common(5))
        note(f"ignored, because they are no text of the corpus: {kinds}")
    for name, proposed in proposals.items():
        tried = ", ".join(f"{text} ({times:,} segments)" for text, times in proposed)
        hint = "add words to its line in --names" + (f", for example {tried}" if proposed else "")
        note(f"{name} never occurs; {hint}")
    rare = [name for name in counted.little() if name not in proposals]
    if rare:
        note(f"these names occur too rarely: {', '.join(rare)}; add descriptions or more text")
    made = counted.corpora[0]
    output.print(
        f"{made.files:,} files, {made.bytes / 1e6:,.1f} MB of text, {made.segments:,} {counted.rule.segment}s, "
        f"{made.skipped:,} skipped, {seconds:.1f} s ({_rate(made.bytes, seconds)})"
    )


def _rate(size: int, seconds: float) -> str:
    """Returns the speed in MB/s, or in kB/s below one."""
    rate = size / max(seconds, 1e-9)
    return f"{rate / 1e6:,.0f} MB/s" if rate >= 1e6 else f"{rate / 1e3:,.1f} kB/s"
