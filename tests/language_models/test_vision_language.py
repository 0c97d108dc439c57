"""Models that read images: tokens beside transformers' own, on every target; what does more with images is refused."""

from __future__ import annotations

import pytest
import torch

import ir
import language_models
from language_models.vision_language import reference
from tests.language_models import checkpoints

transformers = checkpoints.transformers
IMAGE = 90  # the token
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "image_size": 16, "patch_size": 4}  # fmt: skip


def llava():
    text, vision = transformers.LlamaConfig(**checkpoints.LLAMA), transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    return scaled(transformers.LlavaForConditionalGeneration(config))


def smolvlm():
    """An image has a dimension for several, which the model filters by what is in them."""
    text = transformers.LlamaConfig(**checkpoints.LLAMA)
    config = transformers.SmolVLMConfig(vision_config=VISION, text_config=text, image_token_id=IMAGE, scale_factor=2)
    return scaled(transformers.SmolVLMForConditionalGeneration(config))


def gemma3():
    """The tokens of an image attend to each other in both directions."""
    text = transformers.Gemma3TextConfig(**checkpoints.FAMILIES["Gemma3"])
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**VISION), text_config=text, image_token_id=IMAGE,
        image_token_index=IMAGE, mm_tokens_per_image=4, boi_token_index=91, eoi_token_index=92,
    )  # fmt: skip
    return scaled(transformers.Gemma3ForConditionalGeneration(config))


def scaled(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(std=0.02 if "embed" in name else 0.1)
    return model.eval()


REST = [pytest.param(*row, marks=pytest.mark.slow) for row in ((llava, "eager"), (smolvlm, "onnx"))]


@pytest.mark.parametrize("make, target", [(llava, "onnx"), (llava, "nnef"), *REST])
def test_the_tokens(tmp_path, make, target):
    """Two texts of different lengths, padded on the left, with an image each; then a text without one."""
    model = make()
    made = language_models.export(model, path=tmp_path / "out", target=target)
    program = made.load()
    images = torch.randn(2, *made.manifest.said["image"], generator=torch.Generator().manual_seed(1))
    taken = len(program.see({"pixel_values": images[:1]})["image_features"])
    image = [IMAGE] * taken
    tokens = torch.tensor([[1, 5, *image, 7, 8, 9], [0, 0, 1, *image, 12, 13]])
    mask = (tokens > 0).to(torch.int64)
    found = program.generate(tokens, mask, 16, pixel_values=images)
    assert torch.equal(found, reference(model, tokens, images, 16, mask))
    other = program.generate(tokens, mask, 16, pixel_values=images.flip(0))
    assert not torch.equal(found, other)  # the image counts
    text = torch.tensor([[1, 5, 6, 7]])
    assert torch.equal(
        program.generate(text, max_new_tokens=8), model.generate(text, max_new_tokens=8, do_sample=False)
    )
    right = torch.stack([row.roll(-int((row == 0).sum())) for row in tokens])
    padded = program.generate(right, (right > 0).to(torch.int64), 16, pixel_values=images)
    assert torch.equal(padded[:, tokens.shape[1] :], found[:, tokens.shape[1] :])
    with pytest.raises(ir.RefusedError, match="places for images, which take"):
        program.generate(text, pixel_values=images)
    with pytest.raises(ir.RefusedError, match="more than the context of"):
        program.generate(text, max_new_tokens=1 << 20)
    for said, pixels in {
        r"float32 of shape \[2, 16, 16, 3\]": images.reshape(2, 16, 16, 3),
        r"float32 of shape \[2, 3, 8, 32\]": images.reshape(2, 3, 8, 32),
        r"float32 of shape \[0, 3, 16, 16\]": images.reshape(-1, 3, 16, 16)[:0],
        r"uint8 of shape \[2, ": images.to(torch.uint8),
        "a list": images.tolist(),
    }.items():
        with pytest.raises(ir.RefusedError, match=rf"of shape \['images', 3, 16, 16\] is wanted, .*; this is {said}"):
            program.generate(tokens, mask, 16, pixel_values=pixels)
    nested = program.generate(tokens, mask, 16, pixel_values=images.reshape(1, 2, 1, 3, 16, 16))
    assert torch.equal(nested, found)


@pytest.mark.slow
def test_what_does_more_with_images_is_refused(tmp_path):
    with pytest.raises(ir.MismatchError, match="Gemma3ForConditionalGeneration does more with images"):
        language_models.export(gemma3(), path=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_model_with_vectors_for_the_tokens_round_an_image(tmp_path):
    """Ovis2 has them for what its processor puts round an image, which no text of random tokens has to hold."""
    vision = {**VISION, "vocab_size": 32, "num_visual_indicator_tokens": 2, "hidden_stride": 2}
    config = transformers.Ovis2Config(
        vision_config=vision, text_config=transformers.Qwen2Config(**checkpoints.LLAMA), image_token_id=IMAGE,
        hidden_size=32, vocab_size=96, visual_indicator_token_ids=[91, 92],
    )  # fmt: skip
    told = r"the tokens that config.json names .*91, 92.* Ovis2ForConditionalGeneration does more with images"
    with pytest.raises(ir.MismatchError, match=told):
        language_models.export(scaled(transformers.Ovis2ForConditionalGeneration(config)), path=tmp_path / "out")


@pytest.mark.parametrize("target", ["eager", "nnef"])
def test_sizes_that_an_image_decides(tmp_path, target):
    """The way out is told, and no folder that is gone by then."""
    told = rf"^SmolVLMForConditionalGeneration has sizes in its vision_encoder.* '{target}' .*take target='onnx'"
    with pytest.raises(ir.CaptureError, match=told) as seen:
        language_models.export(smolvlm(), path=tmp_path / "out", target=target)
    assert ".partial" not in str(seen.value)


def test_an_image_of_no_known_size(tmp_path):
    model = llava()
    with pytest.raises(ir.CaptureError, match=r"LlavaForConditionalGeneration takes no image .*give example="):
        language_models.export(model, path=tmp_path / "out", example=torch.ones(1, 2, 3))


@pytest.mark.parametrize("example", [None, torch.ones(1, 3, 16, 16)])
def test_an_encoder_of_images_with_a_decoder_behind_it_is_refused(tmp_path, example):
    decoder = transformers.BartConfig(d_model=32, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=64)
    halves = transformers.ViTConfig(**VISION), decoder
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*halves)
    model = transformers.VisionEncoderDecoderModel(config=config).eval()
    with pytest.raises(ir.CaptureError, match="VisionEncoderDecoderModel is not exported: it puts no images among"):
        language_models.export(model, path=tmp_path / "out", example=example)


@pytest.mark.slow
def test_pixels_of_the_processor_in_half_precision(tmp_path):
    """The processor gives float32, whatever the file computes in."""
    program = language_models.export(llava(), path=tmp_path / "out", target="eager", weights="bf16").load()
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    text = torch.tensor([[1, *[IMAGE] * 16, 7]])
    found, half = (program.generate(text, max_new_tokens=4, pixel_values=i) for i in (image, image.bfloat16()))
    assert torch.equal(found, half)


@pytest.mark.slow
def test_a_decoder_that_decides_by_lengths(tmp_path):
    class Decides(transformers.LlavaForConditionalGeneration):
        def forward(self, past_key_values=None, **given):
            found = super().forward(past_key_values=past_key_values, **given)
            if past_key_values is not None and past_key_values.layers[0].keys.shape[2] > 32:
                found.logits = -found.logits
            return found

    model = llava()
    model.__class__ = Decides
    told = r"it decides by the length of the text, .* only where .*32.*\n +at .*test_vision_language.py:\d+"
    with pytest.raises(ir.CaptureError, match=told):
        language_models.export(model, path=tmp_path / "out", target="onnx")
