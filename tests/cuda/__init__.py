"""The eager target on a GPU: `nox -s cuda`; every test is skipped where torch finds none."""
