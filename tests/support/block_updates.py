"""Updates whose blocks can be combined, and such whose blocks have to run in order; with their first states."""

import numpy as np


def wins(most, strict):
    """The first, or last, of the best, and its place."""

    def update(state, x):
        best, place = state
        value = np.where(x == x, np.floor(4 * x), 0.0)
        pair = (best, value) if most else (value, best)
        better = pair[0] < pair[1] if strict else pair[0] <= pair[1]
        return np.where(better, value, best), np.where(better, x, place)

    return update


COMBINED = {
    "constant": (lambda s, x: 0.9 * s + x, 0.5),
    "gated": (lambda s, x: (0.5 + 0.5 * x) * s - x, 0.5),
    "reset": (lambda s, x: np.where(x > 0.9, 0.0, -s) + x, 0.5),
    "garch": (lambda s, x: (0.1 + 0.2 * x * x + 0.7 * s, np.sqrt(s)), 1.0),
    "two states": (lambda s, x: ((0.9 * s[0] - 0.2 * s[1] + x, 0.3 * s[0] + 0.8 * s[1]), s[0] + x), (0.5, -1.0)),
    "two gated": (lambda s, x: ((0.9 * s[0] - x * s[1], 0.5 * s[0] * x + x), (s[0] * s[1], x)), (0.5, -1.0)),
    "four gated": (lambda s, x: (0.2 * x * (s[0] + s[1] + s[2] - s[3]) + x, *s[:3]), (1.0, 2.0, 3.0, 4.0)),
    "max": (np.maximum, -np.inf),
    "leaking max": (lambda s, x: np.maximum(s - 0.01, x), 0.5),
    "max with resets": (lambda s, x: np.where(x > 0.97, -x, np.maximum(s - 0.01, x)), 0.5),
    "moving min": (lambda s, x: np.minimum(np.minimum(s, 3.0) + x, 1.0), 0.5),
    "logaddexp": (lambda s, x: np.logaddexp(s + x, -1.0), -np.inf),
    "first largest": (wins(True, True), (-np.inf, -1.0)),
    "last largest": (wins(True, False), (-np.inf, -1.0)),
    "first least": (wins(False, True), (np.inf, -1.0)),
    "last least": (wins(False, False), (np.inf, -1.0)),
}
IN_ORDER = {
    "tanh": (lambda s, x: np.tanh(s + x), 0.5),
    "product": (lambda s, x: ((s[0] * s[1] + x, 0.5 * s[0]), s[1]), (0.5, 0.25)),
    "many states": (lambda s, x: (s[1], s[2], s[3], s[4], 0.5 * s[0] + x), (0.0, 1.0, 2.0, 3.0, 4.0)),
}
UPDATES = {**COMBINED, **IN_ORDER}
