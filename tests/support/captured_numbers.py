"""Updates that take a number from around them, which tests change between calls."""

FACTOR = 2.0


def updates():
    """Return updates with a factor of 3 from a closure, FACTOR and 4 by default; and how to set the first one."""
    factor = 3.0

    def closed(s, x):
        return factor * x

    def globally(s, x):
        return FACTOR * x

    def by_default(s, x, factor=4.0):
        return factor * x

    def set_closed(number):
        nonlocal factor
        factor = number

    return (closed, globally, by_default), set_closed
