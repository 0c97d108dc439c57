"""Cases of the table that the eager target cannot run, with the reason; strict."""

LIMITS: dict[str, str] = {
    "control/associative_scan": "torch.export leaves torch.vmap's own calls in the sub-graph, which are no operators",
}
