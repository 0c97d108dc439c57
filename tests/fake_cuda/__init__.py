"""Programs on a GPU that is not there: fake tensors say where everything lies, and what waits for the host."""
