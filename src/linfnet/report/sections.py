"""The sections of the page: places for the charts, with their captions, and the gallery."""

from collections.abc import Sequence
from html import escape

from linfnet.epsilon import format_epsilon
from linfnet.report.chart_data import Figure, in_255ths
from linfnet.report.gallery import Card, Group, gallery
from linfnet.report.run_summary import RunRecord


def _plot(name: str, label: str) -> str:
    """The place of a chart: a slider for the keyboard, a read-out, and the drawing between them."""
    return (
        f'<div class="readout" id="{name}-readout"></div>'
        f'<div class="plot" id="{name}-plot" role="slider" tabindex="0" aria-label="{escape(label)}" '
        'aria-valuenow="0" aria-valuetext=""></div>'
    )


def curve_section(runs: Sequence[RunRecord]) -> str:
    """The certified curve, with the field that reads it at a typed epsilon."""
    several = len(runs) > 1
    steps = {m.pgd_steps for run in runs for m in run.main}
    attack = (
        f"Dots are what PGD{f'-{min(steps)}' if len(steps) == 1 else ''} left where it was run; "
        "the true robust accuracy lies between both. "
        if any(steps)
        else "No attack has been run. "
    )
    interval = "" if several else "At measured ε the read-out tells of every certificate. "
    hint = "Hover, drag, or use the arrow keys to read any ε; or type one, as in 8/255."
    return f"""<figure>
<form class="ask" id="ask"><label for="ask-eps">Read at ε =</label>
<input id="ask-eps" size="8" autocomplete="off"></form>
{_plot("curve", "Perturbation ε")}
<figcaption>The share of test images that are right and proven to stay so for every change of up to ε per pixel.
{attack}{interval}{hint}</figcaption>
</figure>"""


def training_section(panels: Sequence[Figure]) -> str:
    """A small chart for each panel."""
    if not panels:
        return ""
    plots = "".join(
        f"<figure><h3>{escape(panel['title'])}</h3>{_plot(f'training-{k}', panel['title'] + ', epoch')}</figure>"
        for k, panel in enumerate(panels)
    )
    caption = (
        "Over epochs, with p on the upper edge: p stays at its start, rises to make the ℓp distance ever more like "
        "ℓ∞, and is infinite at the end. Tests at p = ∞ use means estimated anew."
        if any(panel["title"] == "Exponent p" for panel in panels)
        else "Over epochs."
    )
    return f'<p class="about">{caption}</p><div class="panels">{plots}</div>'


def histogram_section(runs: Sequence[RunRecord]) -> str:
    """The histogram of margins."""
    epsilon = next((format_epsilon(run.epsilon) for run in runs if run.epsilon), None)
    beyond = f"Beyond ε = {epsilon} an image is proven, rounding apart" if epsilon else ""
    return f"""<figure>{_plot("histogram", "Half margin")}
<figcaption>Half of the margin of each test image, in pixel units: its radius, and below 0 by how much it is wrong.
{beyond}. The outermost bars hold what lies beyond them.</figcaption></figure>"""


def gallery_section(runs: Sequence[RunRecord]) -> str:
    """The galleries of all runs; those after the first are folded."""
    parts: list[str] = []
    for k, run in enumerate(runs):
        groups = gallery(run, in_255ths([run]))
        if not groups:
            continue
        inside = "".join(_group(group) for group in groups)
        if len(runs) > 1:
            shown = "" if parts else " open"
            name = f'<span class="key c{k % 6}">{escape(run.name)}</span>'
            inside = f"<details{shown}><summary>{name}</summary>{inside}</details>"
        parts.append(inside)
    return "".join(parts)


def _group(group: Group) -> str:
    cards = "".join(_card(card) for card in group.cards)
    kind = "cards wide" if any(len(card.pictures) > 1 for card in group.cards) else "cards"
    return f'<h3>{escape(group.title)}</h3><p class="about">{escape(group.about)}</p><ul class="{kind}">{cards}</ul>'


def _card(card: Card) -> str:
    images = "".join(
        f'<span><img src="{picture.uri}" alt="{escape(picture.alt)}">'
        + (f"<small>{escape(picture.label)}</small>" if picture.label else "")
        + "</span>"
        for picture in card.pictures
    )
    lines = "".join(f"<small>{escape(line)}</small>" for line in card.lines if line)
    return f'<li><div class="pictures">{images}</div><b>{escape(card.title)}</b>{lines}</li>'
