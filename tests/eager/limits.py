"""Cases of the table that the eager target cannot run, with the reason; strict."""

LIMITS: dict[str, str] = {}
