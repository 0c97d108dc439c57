"""The recurrent family."""
