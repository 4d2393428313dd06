"""One colour per method in every figure, told apart in print and by colour-blind readers."""

import colorsys
import zlib

from paragp.paper.tables import RAISSI_AS_PUBLISHED

COLOURS = {
    "map": "#999999", "svgp": "#0072b2", "gamma-robust": "#56b4e9", "od-svgp": "#009e73", "vfitc": "#cc79a7",
    "ppgpr-delta": "#d4a300", "ppgpr-mf": "#e69f00", "ppgpr-chol": "#8a3b12", "ppgpr-mfd": "#d55e00",
    "od-vfitc": "#7f2f66", "ppgpr-mfd-2k": "#ff9f7a", "ppgpr-chol-2k": "#c08a6a", "ppgpr-log": "#a3001b",
    "two-stage": "#e6007e",
    "ppgpr-gamma": "#b8b800", "bb-alpha": "#00429d", "bb-alpha-u": "#5fb8a5",
    "exact": "#000000", "raissi": "#7a5195",
    RAISSI_AS_PUBLISHED: "#c4a7e0",
}  # fmt: skip


def colour(method: str) -> str:
    """A method's colour; a new one, which has none here, takes one by its name.

    >>> colour("svgp"), colour("a new one") == colour("a new one")
    ('#0072b2', True)
    """
    if method in COLOURS:
        return COLOURS[method]
    parts = colorsys.hls_to_rgb(zlib.crc32(method.encode()) / 2**32, 0.4, 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def tint(colour: str, share: float) -> str:
    """The colour with white: a share from 0 to 1 of it.

    >>> tint("#000000", 0.2)
    '#cccccc'
    """
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)
