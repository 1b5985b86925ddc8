"""The outlines and details of ten garments.

In: pixel positions in each garment's own frame and a source of random numbers, one per picture.
Out: for every pixel the distance to the outline (negative inside) and a brightness factor. The
measures overlap on purpose: a shirt may have a T-shirt's sleeves or a coat's.

Shapes and the frame are those of `shapes`: fields [B, P], parameters [B, 1], -1..1, y downwards.
"""

from dataclasses import dataclass

import numpy as np

from data.shapes import FAR, Draw, Field, Sheet, disc, limb, line, ramp, wave


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The measures of an upper garment, [B, 1] each, in units of the frame."""

    top: Field
    bottom: Field
    shoulder: Field
    waist: Field
    hem: Field
    sleeve: Field  # length; next to nothing means none
    reach: Field  # how far the sleeve goes sideways for one unit down
    neck_width: Field
    neck_depth: Field


def upper(x: Field, y: Field, cut: Cut) -> tuple[Field, Field]:
    """Return the outline of a garment with shoulders, and that of its sleeves alone."""
    side = np.abs(x)
    middle = 0.5 * (cut.top + cut.bottom)
    width = cut.shoulder + (cut.waist - cut.shoulder) * ramp(y, cut.top, middle)
    width = width + (cut.hem - cut.waist) * ramp(y, middle, cut.bottom)
    slope = cut.top + 0.28 * side
    body = np.maximum(np.maximum(side - width, y - cut.bottom), slope - y)
    start_x, start_y = cut.shoulder - 0.13, cut.top + 0.28 * cut.shoulder + 0.1
    step = cut.sleeve / np.sqrt(1.0 + cut.reach * cut.reach)
    ends = (start_x, start_y, start_x + cut.reach * step, start_y + step)
    arms = limb(side, y, ends, (0.17, 0.17 - 0.05 * cut.sleeve))
    arms = np.where(cut.sleeve > 0.1, arms, FAR)
    neck = disc(x / cut.neck_width, (y - cut.top) / cut.neck_depth, 1.0) * cut.neck_width
    return np.maximum(np.minimum(body, arms), -neck), arms


def _seams(arms: Field, draw: Draw) -> Field:
    return 1.0 - draw(0.1, 0.5) * line(arms, 0.09)


def _dots(x: Field, y: Field, gap: Field, size: float) -> Field:
    """Return a column of buttons at x = 0."""
    nearest = (y / gap - np.floor(y / gap) - 0.5) * gap
    return np.clip(1.5 - disc(x, nearest, 0.0) / size, 0.0, 1.0)


def _faint(draw: Draw, strongest: float, share: float) -> Field:
    """Return the strength of a detail that shows on a share of the pieces only."""
    return np.where(draw.chance(share), draw(0.0, strongest), 0.0)


def t_shirt(x: Field, y: Field, draw: Draw) -> Sheet:
    """Short sleeves, a round neck, often a print on the chest."""
    shoulder = draw(0.44, 0.6)
    cut = Cut(
        top=draw(-0.9, -0.8),
        bottom=draw(0.7, 0.95),
        shoulder=shoulder,
        waist=shoulder - draw(0.02, 0.16),
        hem=shoulder - draw(-0.02, 0.14),
        sleeve=draw(0.1, 0.9),
        reach=draw(0.3, 1.0),
        neck_width=draw(0.14, 0.3),
        neck_depth=draw(0.06, 0.28),
    )
    outline, arms = upper(x, y, cut)
    panel = np.maximum(np.abs(x) - draw(0.12, 0.3), np.abs(y - draw(-0.35, 0.0)) - draw(0.1, 0.3))
    ink = np.where(draw.chance(0.35), draw(-0.6, 0.6), 0.0)
    shade = _seams(arms, draw) * (1.0 + ink * np.clip(-panel / 0.06, 0.0, 1.0))
    shade = shade * (1.0 - _faint(draw, 0.5, 0.3) * _dots(x, y, draw(0.2, 0.3), 0.05) * (y < -0.2))
    return Sheet(distance=outline, shade=shade)


def trouser(x: Field, y: Field, draw: Draw) -> Sheet:
    """Return two legs from one waist."""
    waist, crotch, bottom = draw(0.22, 0.46), draw(-0.5, 0.0), draw(0.7, 0.98)
    top, side = draw(-0.97, -0.85), np.abs(x)
    hip = waist + draw(0.0, 0.1) * ramp(y, top, crotch)
    seat = np.maximum(np.maximum(side - hip, y - crotch - 0.1), top - y)
    ends = (0.5 * waist + 0.02, crotch - 0.12, 0.5 * waist + draw(0.0, 0.42), bottom)
    leg = limb(side, y, ends, (0.5 * waist + draw(0.0, 0.07), draw(0.1, 0.27)))
    belt = line(y - top - 0.09, 0.07) * draw(-0.4, 0.3)
    fly = line(x, 0.06) * (y < crotch) * draw(0.0, 0.5)
    return Sheet(distance=np.minimum(seat, leg), shade=(1.0 + belt) * (1.0 - fly))


def pullover(x: Field, y: Field, draw: Draw) -> Sheet:
    """Long sleeves, a closed front, ribbed hem; now and then a hood."""
    shoulder = draw(0.42, 0.56)
    cut = Cut(
        top=draw(-0.9, -0.75),
        bottom=draw(0.6, 0.95),
        shoulder=shoulder,
        waist=shoulder - draw(0.0, 0.12),
        hem=shoulder - draw(0.0, 0.14),
        sleeve=draw(0.95, 1.6),
        reach=draw(0.1, 0.42),
        neck_width=draw(0.12, 0.28),
        neck_depth=draw(0.05, 0.24),
    )
    outline, arms = upper(x, y, cut)
    hood = disc(x / 0.26, (y - cut.top - 0.02) / 0.16, 1.0) * 0.2
    outline = np.where(draw.chance(0.2), np.minimum(outline, hood), outline)
    rib = 1.0 - draw(0.0, 0.4) * line(y - cut.bottom + 0.08, 0.08)
    zipper = 1.0 - _faint(draw, 0.6, 0.35) * line(x, 0.08) * (y < draw(-0.5, 0.8))
    return Sheet(distance=outline, shade=_seams(arms, draw) * rib * zipper)


def dress(x: Field, y: Field, draw: Draw) -> Sheet:
    """Long and narrow at the waist; any sleeves, or none."""
    shoulder = draw(0.22, 0.44)
    sleeve = np.where(draw.chance(0.5), 0.0, draw(0.2, 1.2))
    cut = Cut(
        top=draw(-0.97, -0.88),
        bottom=draw(0.75, 0.98),
        shoulder=shoulder,
        waist=draw(0.17, 0.4),
        hem=draw(0.24, 0.62),
        sleeve=sleeve,
        reach=draw(0.1, 0.6),
        neck_width=draw(0.1, 0.22),
        neck_depth=draw(0.1, 0.35),
    )
    outline, arms = upper(x, y, cut)
    belt = 1.0 - draw(0.0, 0.5) * line(y - draw(-0.2, 0.1), 0.07)
    return Sheet(distance=outline, shade=_seams(arms, draw) * belt)


def coat(x: Field, y: Field, draw: Draw) -> Sheet:
    """Long sleeves, open down the front, lapels, longer than a pullover."""
    shoulder = draw(0.42, 0.56)
    cut = Cut(
        top=draw(-0.93, -0.8),
        bottom=draw(0.68, 0.98),
        shoulder=shoulder,
        waist=shoulder - draw(0.0, 0.14),
        hem=shoulder - draw(-0.08, 0.1),
        sleeve=draw(1.05, 1.65),
        reach=draw(0.1, 0.4),
        neck_width=draw(0.12, 0.26),
        neck_depth=draw(0.05, 0.25),
    )
    outline, arms = upper(x, y, cut)
    front = _faint(draw, 0.75, 0.85) * line(x - draw(-0.06, 0.06), 0.08)
    lapel_end = cut.top + draw(0.4, 0.8)
    lapel = line(np.abs(x) - 0.3 * (lapel_end - y), 0.07) * (y < lapel_end)
    studs = np.where(draw.chance(0.4), draw(0.2, 0.6), 0.0)
    buttons = studs * _dots(np.abs(x) - 0.1, y, draw(0.25, 0.4), 0.06) * (y > lapel_end)
    shade = (
        _seams(arms, draw)
        * (1.0 - front)
        * (1.0 - _faint(draw, 0.6, 0.7) * lapel)
        * (1.0 - buttons)
    )
    return Sheet(distance=outline, shade=shade)


def shirt(x: Field, y: Field, draw: Draw) -> Sheet:
    """Draw a collar, a column of buttons, and sleeves of a T-shirt's to a coat's length."""
    shoulder = draw(0.4, 0.56)
    short = draw.chance(0.35)
    cut = Cut(
        top=draw(-0.92, -0.8),
        bottom=draw(0.68, 0.95),
        shoulder=shoulder,
        waist=shoulder - draw(0.0, 0.16),
        hem=shoulder - draw(-0.04, 0.14),
        sleeve=np.where(short, draw(0.15, 0.7), draw(1.0, 1.55)),
        reach=np.where(short, draw(0.3, 0.9), draw(0.1, 0.42)),
        neck_width=draw(0.12, 0.26),
        neck_depth=draw(0.06, 0.26),
    )
    outline, arms = upper(x, y, cut)
    collar = (
        _faint(draw, 0.6, 0.65)
        * line(np.abs(x) + 1.2 * (y - cut.top) - 0.42, 0.12)
        * (y < cut.top + 0.35)
    )
    placket = _faint(draw, 0.5, 0.6) * line(x, 0.08)
    buttons = _faint(draw, 0.6, 0.65) * _dots(x, y, draw(0.2, 0.32), 0.05)
    shade = (1.0 + collar) * (1.0 - placket) * (1.0 - buttons)
    return Sheet(distance=outline, shade=_seams(arms, draw) * shade)


def _shoe(x: Field, y: Field, draw: Draw, collar: Field, floor: Field) -> tuple[Field, Field]:
    """Return a shoe seen from its side, toe to the left.

    Args:
        x: where to evaluate.
        y: where to evaluate.
        draw: random numbers.
        collar: y of the opening.
        floor: y of the ground.

    Returns:
        Its outline, and y of its upper edge.
    """
    toe, tip, back = floor - draw(0.22, 0.34), draw(-0.95, -0.85), draw(0.8, 0.93)
    instep = draw(-0.15, 0.2)
    rise = ramp(x, -0.6, instep)
    edge = toe + (collar - toe) * rise * (0.3 + 0.7 * rise)
    # A dip where the foot goes in, and the tip of the toe falling off in a quarter of a circle.
    dip = ramp(x, instep, instep + 0.25) * ramp(-x, -back, -back + 0.3)
    blunt = ramp(-x, -tip - 0.3, -tip)
    edge = edge + draw(0.0, 0.16) * dip + (floor - toe) * (1.0 - np.sqrt(1.0 - blunt * blunt))
    heel = x - back + draw(0.0, 0.1) * ramp(-y, -collar - 0.35, -collar)
    return np.maximum(np.maximum(edge - y, y - floor), np.maximum(heel, tip - x)), edge


def sandal(x: Field, y: Field, draw: Draw) -> Sheet:
    """Return a sole and a few straps, with the foot missing between them; flat or on a heel."""
    floor = draw(0.4, 0.6)
    slope = np.where(draw.chance(0.45), draw(0.2, 0.5), 0.0)
    lifted = y + slope * ramp(x, -0.5, 0.7)
    shoe, edge = _shoe(x, lifted, draw, floor - draw(0.4, 0.8), floor)
    lean, spread = draw(-0.5, 0.7), draw(0.55, 1.1)
    straps = wave((x + lean * (lifted - floor)) / spread + draw(0.0, 1.0)) - draw(0.2, 0.42)
    rim = lifted - edge - draw(-0.05, 0.16)
    upper_part = np.maximum(shoe, np.minimum(straps * 0.5 * spread, rim))
    thick = draw(0.08, 0.2)
    sole = np.maximum(np.abs(lifted - floor + 0.5 * thick) - 0.5 * thick, np.abs(x) - 0.9)
    heel_start = draw(0.3, 0.72)
    block = np.maximum(np.maximum(heel_start - x, x - 0.88), np.maximum(y - floor, floor - lifted))
    outline = np.minimum(np.minimum(upper_part, sole), block)
    return Sheet(distance=outline, shade=1.0 + draw(-0.4, 0.3) * np.clip(-sole / 0.05, 0.0, 1.0))


def sneaker(x: Field, y: Field, draw: Draw) -> Sheet:
    """Return a low closed shoe with a sole of another colour and laces."""
    floor = draw(0.35, 0.6)
    shoe, edge = _shoe(x, y, draw, floor - draw(0.5, 0.85), floor)
    sole = draw(-0.5, 0.5) * np.clip((y - floor + draw(0.1, 0.2)) / 0.06, 0.0, 1.0)
    laces = (wave(x * 4.0) > 0.5) * line(y - edge - 0.12, 0.12) * ramp(0.3 - x, 0.0, 0.2)
    badge = draw(0.0, 0.5) * line(x - y * draw(-1.0, 1.0) - draw(-0.1, 0.4), 0.1)
    shade = (1.0 + sole) * (1.0 - draw(0.0, 0.6) * laces) * (1.0 - badge)
    return Sheet(distance=shoe, shade=shade)


def bag(x: Field, y: Field, draw: Draw) -> Sheet:
    """Return a box with a handle, a flap and sometimes a buckle."""
    centre, height, width = draw(0.05, 0.35), draw(0.32, 0.62), draw(0.5, 0.9)
    taper = draw(-0.15, 0.15) * (y - centre) / height
    body = np.maximum(np.abs(x) - width * (1.0 + taper), np.abs(y - centre) - height)
    wide, tall = width * draw(0.35, 0.9), draw(0.25, 0.75)
    ring = disc(x / wide, (y - centre + height) / tall, 1.0) * np.minimum(wide, tall)
    handle = np.abs(ring) - draw(0.04, 0.1)
    handle = np.where(draw.chance(0.15), FAR, handle)
    flap = line(y - centre + height * draw(-0.2, 0.7), 0.07) * draw(0.0, 0.6)
    buckle = np.where(draw.chance(0.4), draw(-0.5, 0.6), 0.0)
    clasp = buckle * np.clip(-disc(x, y - centre, 0.14) / 0.06, 0.0, 1.0)
    return Sheet(distance=np.minimum(body, handle), shade=(1.0 - flap) * (1.0 + clasp))


def ankle_boot(x: Field, y: Field, draw: Draw) -> Sheet:
    """Return a shoe with a shaft above the ankle, often on a heel."""
    floor, collar = draw(0.5, 0.85), draw(-0.9, -0.3)
    shoe, _ = _shoe(x, y, draw, floor - draw(0.55, 0.8), floor)
    front, back = draw(-0.15, 0.2), draw(0.72, 0.92)
    shaft = np.maximum(front - x - draw(0.0, 0.15) * (y - floor), x - back)
    shaft = np.maximum(shaft, np.maximum(collar - y, y - floor))
    arch = np.where(draw.chance(0.5), draw(0.1, 0.35), -FAR) * ramp(x, -0.45, 0.2)
    hollow = np.maximum(floor - arch - y, x - draw(0.35, 0.5))
    outline = np.maximum(np.minimum(shoe, shaft), -hollow)
    zip_line = draw(0.0, 0.5) * line(x - draw(0.2, 0.6), 0.06) * (y < floor - 0.3)
    sole = draw(-0.4, 0.4) * np.clip((y - floor + 0.12) / 0.06, 0.0, 1.0)
    return Sheet(distance=outline, shade=(1.0 - zip_line) * (1.0 + sole))


# In the order of the labels.
GARMENTS = (
    t_shirt,
    trouser,
    pullover,
    dress,
    coat,
    sandal,
    shirt,
    sneaker,
    bag,
    ankle_boot,
)
