"""language_models: from a transformers checkpoint to a folder that generates text.

>>> import language_models
>>> language_models.export("CHECKPOINT", path="DIR", target="onnx")  # doctest: +SKIP
>>> language_models.load("DIR").generate(input_ids)  # doctest: +SKIP
"""

from language_models.exporting import Exported, export, load

__version__ = "1.0.0"
__all__ = ["Exported", "export", "load"]
