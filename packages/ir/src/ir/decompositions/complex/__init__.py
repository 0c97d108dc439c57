"""Complex tensors for targets that have none: pairs of real ones, rules over them, and the border."""
