"""ir graphs as ONNX: the target `Onnx`, its registry and the decorator `register`."""

from onnx_backend.building.devices import Devices
from onnx_backend.compat.torchlib import torch_op
from onnx_backend.format.data_files import check_data
from onnx_backend.helper import OnnxHelper, OnnxValue
from onnx_backend.registry import REGISTRY, register
from onnx_backend.target import Onnx

__version__ = "1.0.0"

__all__ = ["REGISTRY", "Devices", "Onnx", "OnnxHelper", "OnnxValue", "check_data", "register", "torch_op"]
