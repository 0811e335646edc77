"""Configs of strangers become specs, or are refused by the name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from split_model.errors import UnsupportedModel
from split_model.slices import held_bytes, whole
from split_model.spec import ModelSpec

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 100}
BERT = {**LLAMA, "model_type": "bert", "architectures": ["BertForSequenceClassification"]}
DISTILBERT = {"model_type": "distilbert", "dim": 32, "n_heads": 4, "architectures": ["DistilBertModel"]}
VIT = {**LLAMA, "model_type": "vit", "architectures": ["ViTModel"], "image_size": 32, "patch_size": [8, 16]}
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 4}
OPT = {**LLAMA, "model_type": "opt", "ffn_dim": 44}
QWEN2 = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("vicuna-7b-v1.3", 6_738_415_616),
        ("vicuna-13b-v1.3", 13_015_864_320),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("gpt2", 124_439_808),
        ("gpt2-large", 774_030_080),
        # Without the two rows of positions that nothing stands at.
        ("opt-1.3b", 1_315_758_080 - 2 * 2048),
        ("opt-2.7b", 2_651_596_800 - 2 * 2560),
        ("opt-6.7b", 6_658_473_984 - 2 * 4096),
        ("opt-13b", 12_853_473_280 - 2 * 5120),
        ("opt-30b", 29_974_540_288 - 2 * 7168),
        ("bert-large-uncased", 334_092_288),
        ("vit-base-patch16-224", 86_567_656),
        ("vit-huge-patch14-224", 632_404_480),
    ],
)
def test_published_configs_have_their_published_sizes(name: str, parameters: int) -> None:
    """The parameters that a spec counts are those of the published model."""
    path = CONFIGS / f"{name}.json"
    if not path.is_file():
        pytest.skip("the published configs are not beside this checkout")
    spec = ModelSpec.from_config(json.loads(path.read_text()))
    assert held_bytes(spec, [whole(spec)], "bfloat16") == 2 * parameters


@pytest.mark.parametrize(("name", "parameters"), [("t5-base", 222_903_552), ("t5-large", 737_668_096)])
def test_both_halves_together_have_their_published_size(name: str, parameters: int) -> None:
    """An encoder and a decoder that share the embedding."""
    path = CONFIGS / f"{name}.json"
    if not path.is_file():
        pytest.skip("the published configs are not beside this checkout")
    spec = ModelSpec.from_config(json.loads(path.read_text()))
    assert spec.reader is not None
    held = sum(held_bytes(half, [whole(half)], "bfloat16") for half in (spec, spec.reader))
    assert held == 2 * (parameters + spec.vocab_size * spec.hidden_size)


def test_fields_left_out_are_what_transformers_assumes() -> None:
    """An old llama config without KV heads, head size, rope or dtype."""
    spec = ModelSpec.from_config(LLAMA)
    assert (spec.num_kv_heads, spec.head_dim, spec.max_positions) == (4, 8, 2048)
    assert (spec.rope.kind, spec.rope.theta, spec.dtype) == ("default", 10000.0, "float32")
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert not (spec.tied_embeddings or spec.qkv_bias or spec.output_bias or spec.mlp_bias or spec.qk_norm)


def test_both_layouts_of_rope_say_the_same() -> None:
    """rope_theta beside rope_scaling, with `type` or `rope_type`, equals rope_parameters."""
    old = ModelSpec.from_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    older = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_type"}
    assert old == ModelSpec.from_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": {**older, "type": "llama3"}})
    assert old == ModelSpec.from_config({**LLAMA, "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 5e5}})
    assert (old.rope.kind, old.rope.factor, old.rope.original_max_positions) == ("llama3", 8.0, 8192)


def test_windows_follow_the_family() -> None:
    """Mistral slides everywhere, Qwen2 from max_window_layers on and only if asked to, layer_types go first."""
    mistral = {**QWEN2, "model_type": "mistral"}
    assert ModelSpec.from_config(mistral).windows == (4096,) * 4
    assert ModelSpec.from_config({**mistral, "sliding_window": None}).windows == (None,) * 4
    assert ModelSpec.from_config({**QWEN2, "sliding_window": 7, "max_window_layers": 2}).windows == (None,) * 4
    sliding = {**QWEN2, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    assert ModelSpec.from_config(sliding).windows == (None, None, 7, 7)
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert ModelSpec.from_config({**sliding, "layer_types": types}).windows == (7, None, None, 7)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "mixtral"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"per_layer_config": {"1": {"intermediate_size": 12}}}, "per_layer_config"),
        ({"hidden_act": "relu6"}, "hidden_act"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 32.0}, "hidden_size"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "int8"}, "dtype"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": "llama3"}, "rope_scaling"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "twist": 1}}, "twist"),
        ({"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"model_type": "qwen2", "num_key_value_heads": 2, "attention_bias": True}, "attention_bias"),
        ({"model_type": "qwen3", "num_key_value_heads": 2, "mlp_bias": True}, "mlp_bias"),
        ({"model_type": "qwen3", "num_key_value_heads": 2, "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "qwen3", "num_key_value_heads": 2, "layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 0}, "sliding_window"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    """Each unsupported or impossible option is an UnsupportedModel that names its field."""
    with pytest.raises(UnsupportedModel, match=field):
        ModelSpec.from_config({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({**GPT2, "architectures": ["GPT2ForSequenceClassification"]}, "architectures"),
        ({**GPT2, "scale_attn_weights": False}, "scale_attn_weights"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        ({**GPT2, "is_causal": False}, "is_causal"),
        ({**OPT, "is_causal": False}, "is_causal"),
        ({**LLAMA, "is_causal": False}, "is_causal"),
        ({**GPT2, "n_head": 5}, "n_head"),
        ({**GPT2, "n_positions": 0}, "n_positions"),
        ({**GPT2, "activation_function": "mish"}, "activation_function"),
        ({**OPT, "layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
        ({**OPT, "word_embed_proj_dim": -1}, "word_embed_proj_dim"),
        ({**OPT, "ffn_dim": None}, "ffn_dim"),
        ({**OPT, "do_layer_norm_before": 1}, "do_layer_norm_before"),
        ({**BERT, "is_decoder": True}, "is_decoder"),
        ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({**BERT, "architectures": ["BertForQuestionAnswering"]}, "architectures"),
        ({**BERT, "type_vocab_size": 0}, "type_vocab_size"),
        ({**BERT, "num_labels": 0}, "num_labels"),
        ({**DISTILBERT, "n_heads": 5}, "n_heads"),
        ({**VIT, "image_size": [32, 33]}, "image_size"),
        ({**VIT, "patch_size": [8, 16, 8]}, "patch_size"),
        ({**VIT, "num_channels": 0}, "num_channels"),
        ({**VIT, "pooler_act": "mish"}, "pooler_act"),
        ({**T5, "architectures": ["T5ForTokenClassification"]}, "architectures"),
        ({**T5, "feed_forward_proj": "gated-mish"}, "feed_forward_proj"),
        ({**T5, "feed_forward_proj": None}, "feed_forward_proj"),
        ({**T5, "relative_attention_num_buckets": 3}, "relative_attention_num_buckets"),
        ({**T5, "relative_attention_max_distance": 16}, "relative_attention_max_distance"),
        ({**T5, "num_decoder_layers": 0}, "num_decoder_layers"),
        ({**T5, "num_hidden_layers": 3}, "num_hidden_layers"),
    ],
)
def test_other_families_refuse_by_field_too(changes: dict[str, Any], field: str) -> None:
    """Fields that only some families have."""
    with pytest.raises(UnsupportedModel, match=field):
        ModelSpec.from_config(changes)


@pytest.mark.parametrize("config", [GPT2, DISTILBERT, T5], ids=lambda config: config["model_type"])
def test_common_names_of_fields_are_read_as_transformers_reads_them(config: dict[str, Any]) -> None:
    """Of a field's own name and its common one, whichever is there is read; the common one of both."""
    common = {"num_attention_heads": 2, "hidden_size": 16}
    if config is not T5:  # It has two numbers of layers.
        common["num_hidden_layers"] = 2
    for said in ({**config, **common}, {"model_type": config["model_type"], **common}):
        meant = AutoConfig.for_model(**said).to_dict()
        assert ModelSpec.from_config({**meant, **_kept(config)}) == ModelSpec.from_config({**said, **_kept(config)})


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    return {"architectures": config["architectures"]} if "architectures" in config else {}


def test_kinds_and_places_follow_the_family() -> None:
    """What GPT-2 and the two forms of OPT are, as data."""
    gpt2, opt = ModelSpec.from_config(GPT2), ModelSpec.from_config(OPT)
    odd = ModelSpec.from_config({**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 20})
    for spec in (gpt2, opt, odd):
        assert (spec.positions, spec.norm, spec.gated_mlp, spec.attention) == ("learned", "layer", False, "causal")
        assert spec.tied_embeddings and spec.qkv_bias and spec.output_bias and spec.mlp_bias
    assert [(spec.position_offset, spec.position_limit) for spec in (gpt2, opt)] == [(0, 1024), (2, 2048)]
    assert [spec.intermediate_size for spec in (gpt2, opt)] == [128, 44]
    assert (opt.norm_place, opt.final_norm, opt.embedding_size) == ("before", True, None)
    assert (odd.norm_place, odd.final_norm, odd.embedding_size) == ("after", False, 20)


def test_readers_are_what_their_class_says() -> None:
    """Pooled rows and classes follow the model class; labels are counted or named."""
    for config, pooled, labels in (
        (BERT, 32, 2),
        ({**BERT, "id2label": {"0": "no", "1": "maybe", "2": "yes"}}, 32, 3),
        ({**BERT, "architectures": ["BertForMaskedLM"]}, 0, 0),
        ({**BERT, "architectures": None}, 32, 0),
        (DISTILBERT, 0, 0),
        ({**DISTILBERT, "architectures": ["DistilBertForSequenceClassification"], "num_labels": 4}, 32, 4),
        (VIT, 32, 0),
        ({**VIT, "architectures": ["ViTForImageClassification"]}, 0, 2),
    ):
        spec = ModelSpec.from_config(config)
        assert (spec.pooled_size, spec.labels, spec.attention) == (pooled, labels, "bidirectional")
    places = [(ModelSpec.from_config(each).norm_place, ModelSpec.from_config(each).final_norm) for each in (BERT, VIT)]
    assert places == [("after", False), ("before", True)]
    assert ModelSpec.from_config(VIT).max_positions == 1 + 4 * 2


def test_the_two_halves_of_t5() -> None:
    """Gate, scale and tying follow the config of either version; the encoder alone is a reader."""
    old, new = ModelSpec.from_config(T5), ModelSpec.from_config({**T5, "feed_forward_proj": "gated-gelu"})
    untied = ModelSpec.from_config({**T5, "tie_word_embeddings": False, "num_decoder_layers": 3})
    resaved = ModelSpec.from_config({**T5, "tie_word_embeddings": True, "scale_decoder_outputs": False})
    assert (old.gated_mlp, old.activation, new.gated_mlp, new.activation) == (False, "relu", True, "gelu_tanh")
    assert [spec.head_scale for spec in (old, untied, resaved)] == [32**-0.5, 1.0, 1.0]
    assert [spec.tied_embeddings for spec in (old, untied, resaved)] == [True, False, False]
    assert untied.num_layers == len(untied.windows) == 3 and untied.reader is not None
    alone = ModelSpec.from_config({**T5, "architectures": ["T5EncoderModel"]})
    assert alone == untied.reader and (alone.attention, alone.num_layers) == ("bidirectional", 2)
    assert (untied.attention, untied.positions, untied.scaled_scores) == ("cross", "relative", False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [*LLAMA, "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps"]
FIELDS += ["hidden_act", "sliding_window", "layer_types", "eos_token_id", "bos_token_id", "dtype", "architectures"]


FIELDS += ["id2label", "num_labels", "image_size", "patch_size", "pooler_output_size", "n_layers", "hidden_dim"]
OTHERS = [GPT2, OPT, BERT, DISTILBERT, VIT, T5]
FIELDS += [
    "feed_forward_proj",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "num_decoder_layers",
]
FIELDS += ["n_inner", "n_positions", "word_embed_proj_dim", "do_layer_norm_before", "enable_bias", "scale_attn_weights"]


@given(
    st.sampled_from([{**QWEN2, "model_type": name} for name in ("llama", "mistral", "qwen2", "qwen3")] + OTHERS),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
)
def test_any_value_in_any_field_is_read_or_refused(config: dict[str, Any], changes: dict[str, Any]) -> None:
    """No config, however strange, raises anything but UnsupportedModel."""
    try:
        spec = ModelSpec.from_config({**config, **changes})
    except UnsupportedModel:
        return
    assert spec.num_heads % spec.num_kv_heads == 0 and len(spec.windows) == spec.num_layers


def test_generation_config_may_name_more_ends() -> None:
    """Its ids replace those of the config; where it has none, the config's stay."""
    spec = ModelSpec.from_config(LLAMA)
    assert spec.with_eos([5, 6]) == (5, 6)
    assert spec.with_eos(None) == (2,)
