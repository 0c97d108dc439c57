"""The pool family."""
