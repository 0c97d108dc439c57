"""A .pt2 file written anew with other contents of some tensors; all else is copied as it stands.

But for example inputs that are more than tensors and plain values: torch.export.load would run them.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer import caches
from ir.importer.pt2 import pickles
from ir.importer.pt2.archive import Archive
from ir.importer.torch_api import PT2_EXAMPLES, PT2_TABLE
from ir.importer.weights import TorchWeight
from ir.progress import wrote

_ALIGNED = 64  # where torch's own writer places every record


def write_with(archive: Archive, path: Path, changed: Mapping[str, torch.Tensor]) -> None:
    """Write the archive to `path`, with these tensors in the place of those of their names."""
    tables = {n: json.loads(archive.document(n)) for n in archive.names if n.endswith(PT2_TABLE)}
    with zipfile.ZipFile(path, "w") as target:
        for table_name, table in tables.items():
            folder = table_name.rpartition("/")[0]
            for name, payload in table["config"].items():
                if name in changed:
                    tensor = changed[name].detach()
                    payload["path_name"] = f"{payload['path_name']}_{len(target.namelist())}"
                    payload["tensor_meta"] |= {
                        "strides": [{"as_int": s} for s in torch.empty(tensor.shape, device="meta").stride()],
                        "storage_offset": {"as_int": 0},
                    }
                    _add(target, path, f"{folder}/{payload['path_name']}", TorchWeight(name, tensor).numpy().tobytes())
        for name in archive.names:
            table = tables.get(name)
            data = archive.view(name) if table is None else json.dumps(table).encode()
            _add(target, path, name, b"" if name.startswith(PT2_EXAMPLES) and not _is_plain(data) else data)


def _is_plain(data: memoryview | bytes) -> bool:
    try:
        with torch.serialization.safe_globals(caches.classes()):
            pickles.check(bytes(data))
    except CaptureError:
        return False
    return True


def _add(target: zipfile.ZipFile, path: Path, name: str, data: Any) -> None:
    entry = zipfile.ZipInfo(f"{path.stem}/{name}")
    assert target.fp is not None
    start = target.fp.tell() + 30 + len(entry.filename.encode()) + 4
    entry.extra = struct.pack("<2sH", b"FB", -start % _ALIGNED) + bytes(-start % _ALIGNED)
    target.writestr(entry, data)
    wrote(len(data))
