"""Tests of packages/language_models: small random checkpoints, and tokenizers made here."""
