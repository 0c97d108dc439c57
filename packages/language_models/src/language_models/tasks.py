"""What a checkpoint is for, by transformers' own registries, and the class that makes its model.

The names are those of the tasks of Hugging Face. Nothing here lists architectures: a configuration is looked up in the
mapping of each auto class, and where several have it, the class that the checkpoint names decides.
"""

from __future__ import annotations

from typing import Any

import transformers

from ir.errors import CaptureError

# the registry of each task's models, and the class that makes one of them
AUTO = {
    "text2text-generation": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "AutoModelForSeq2SeqLM"),
    "automatic-speech-recognition": ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "AutoModelForSpeechSeq2Seq"),
    "image-text-to-text": ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "AutoModelForImageTextToText"),
    "text-generation": ("MODEL_FOR_CAUSAL_LM_MAPPING", "AutoModelForCausalLM"),
    "feature-extraction": ("MODEL_MAPPING", "AutoModel"),
}
# the file of this package that writes them; a decoder alone has one for each runtime
WRITERS = {
    "feature-extraction": "language_models.embedding",
    "text2text-generation": "language_models.encoder_decoder",
    "automatic-speech-recognition": "language_models.encoder_decoder",
    "image-text-to-text": "language_models.vision_language",
}


def task_of(config: Any, named: str | None = None) -> str:
    """The task of a checkpoint; `named` is the class that its model has, where that is known.

    Raises:
        CaptureError: no auto class that makes text or embeds it has this configuration.
    """
    makes = [task for task in AUTO if type(config) in _mapping(task)]
    classes = {task: _class_names(config, task) for task in makes}
    if named is not None and (own := [task for task in makes if named in classes[task]]):
        makes = own
    elif named is not None and not _generates(named) and "feature-extraction" in makes:
        makes = ["feature-extraction"]
    if not makes or (makes == ["feature-extraction"] and named is None):
        raise CaptureError(f"{config.model_type} is no causal language model to AutoModelForCausalLM, and none of "
                           f"{', '.join(name for _, name in AUTO.values())} makes text of it")  # fmt: skip
    return makes[0]


def check_task(config: Any, task: str) -> None:
    """Raises CaptureError for a task that transformers has no model of this configuration for."""
    if type(config) not in _mapping(task):
        makes = [name for name in AUTO if type(config) in _mapping(name)]
        raise CaptureError(f"{AUTO[task][1]} has no {config.model_type}: its tasks are {', '.join(makes) or 'none'}")


def auto_class(config: Any, task: str) -> Any:
    """transformers' class that makes models of a task; for embeddings of a checkpoint that is the encoder alone of
    two halves (T5EncoderModel), the class that makes encoders.
    """
    encoders = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    alone = type(config) in encoders and encoders[type(config)].__name__ in (config.architectures or ())
    name = "AutoModelForTextEncoding" if alone and task == "feature-extraction" else AUTO[task][1]
    return getattr(transformers, name)


def _mapping(task: str) -> Any:
    return getattr(transformers, AUTO[task][0])


def _class_names(config: Any, task: str) -> set[str]:
    found = _mapping(task)[type(config)]
    return {cls.__name__ for cls in (found if isinstance(found, (list, tuple)) else [found])}


def _generates(name: str) -> bool:
    cls = getattr(transformers, name, None)
    return bool(cls is None or cls.can_generate())
