"""transformers over sound and time series, by class: speech encoders, codecs, vocoders, forecasters."""

from __future__ import annotations

from ..entry import Entry
from .rows import ids, numbers, unit
from .text import transformer

_WAVE = {"input_values": numbers("batch", "samples")}
_CODED = {"input_values": numbers("batch", 1, "samples")}
_CLIP = {"input_values": numbers("batch", 1, 4000)}  # their code counts the pieces of a recording in a loop
_CONVOLUTIONS = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
_SERIES = {
    "past_values": numbers("batch", 31),
    "past_time_features": numbers("batch", 31, 2),
    "past_observed_mask": unit("batch", 31),
    "future_values": numbers("batch", 8),
    "future_time_features": numbers("batch", 8, 2),
}
_FORECAST = {"prediction_length": 8, "context_length": 24, "num_time_features": 2}
_PATCHED = {"context_length": 32, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3}
_SAMPLED = "Hubert WavLM Data2VecAudio UniSpeech UniSpeechSat Wav2Vec2Conformer"

_ROWS = (
    *(transformer(f"{n}Model", _WAVE, **_CONVOLUTIONS) for n in _SAMPLED.split()),
    transformer("Wav2Vec2ForCTC", _WAVE, label="wav2vec2_ctc", **_CONVOLUTIONS),
    transformer("Wav2Vec2BertModel", {"input_features": numbers("batch", "frames", 160)}),
    transformer("ASTModel", {"input_values": numbers("batch", 64, 32)}, max_length=64, num_mel_bins=32),
    transformer(
        "Speech2TextModel",
        {"input_features": numbers("batch", "frames", 80), "decoder_input_ids": ids("batch", "target")},
        conv_channels=32,
    ),
    transformer(
        "MoonshineModel",
        _WAVE | {"decoder_input_ids": ids("batch", "target")},
        encoder_num_key_value_heads=4,
        decoder_num_key_value_heads=4,
    ),
    transformer(
        "EncodecModel", _CLIP, hidden_size=16, num_filters=4, codebook_size=16, codebook_dim=16, num_lstm_layers=1
    ),
    transformer(
        "MimiModel",
        {"input_values": numbers("clips", 1, 4000)},  # its code asks if there is one, which torch's guards refuse then
        hidden_size=32,
        num_filters=4,
        codebook_size=16,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        upsample_groups=32,
        num_quantizers=3,
    ),
    transformer(
        "DacModel",
        _CODED,
        encoder_hidden_size=4,
        decoder_hidden_size=32,
        codebook_size=16,
        codebook_dim=4,
        n_codebooks=2,
        hidden_size=64,
    ),
    transformer(
        "UnivNetModel",
        {"input_features": numbers("batch", "frames", 100), "noise_sequence": numbers("batch", "frames", 64)},
    ),
    transformer(
        "VitsModel",
        {"input_ids": ids("batch", "sequence", below=30)},
        hidden_size=32,
        upsample_initial_channel=32,
        flow_size=32,
        spectrogram_bins=33,
    ),
    transformer("SpeechT5HifiGan", {"spectrogram": numbers("batch", "frames", 80)}, upsample_initial_channel=32),
    transformer("FastSpeech2ConformerModel", {"input_ids": ids("batch", "sequence")}),
    transformer("ParakeetEncoder", {"input_features": numbers("batch", "frames", 80)}),
    transformer(
        "ClapAudioModel",
        {"input_features": numbers("batch", 1, 1024, 64)},
        depths=[1, 1, 1, 1],
        patch_embeds_hidden_size=32,
    ),
    transformer("TimeSeriesTransformerModel", _SERIES, **_FORECAST),
    transformer("InformerModel", _SERIES, **_FORECAST),
    transformer("AutoformerModel", _SERIES, **_FORECAST),
    transformer("PatchTSTModel", {"past_values": numbers("batch", 32, 3)}, **_PATCHED),
    transformer("PatchTSMixerModel", {"past_values": numbers("batch", 32, 3)}, **_PATCHED),
)
ENTRIES: dict[str, Entry] = dict(_ROWS)
