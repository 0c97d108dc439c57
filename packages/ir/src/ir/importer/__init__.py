"""The only place of `ir` that knows torch: capture, schemas, normalisation, bodies, custom ops."""

import torch

from ir.importer.versions import check_torch

check_torch(torch.__version__)
