"""The only place of `ir` that knows torch: capture, schemas, normalisation, bodies, custom ops."""
