"""What looks inside of a compiled program."""
