"""KV cache sizes: bytes per token, per rank and per layer."""

import pytest

from workloads.kv import KvModel, kv_model


def test_llama_70b_in_bf16_holds_320_kib_per_token():
    model = kv_model("llama-3.1-70b", tp=4)
    assert model.bytes_per_token() == 327_680
    assert model.bytes_per_token() * 4096 == 1_342_177_280


def test_llama_8b_holds_128_kib_per_token():
    assert kv_model("llama-3.1-8b", tp=1).bytes_per_token() == 131_072


def test_fp8_halves_the_cache():
    assert kv_model("llama-3.1-70b", kv_dtype="fp8", tp=4).bytes_per_token() == 163_840


def test_worked_turn_splits_over_four_ranks():
    model = kv_model("llama-3.1-70b", tp=4)
    assert model.rank_bytes(65_600) == 5_373_952_000
    assert model.rank_bytes(1_100) == 90_112_000
    assert model.rank_layer_bytes(1_100) == 1_126_400


def test_layers_of_a_rank_add_up_to_the_rank():
    model = kv_model("llama-3.1-8b", tp=8)
    assert model.layers * model.rank_layer_bytes(777) == model.rank_bytes(777)


def test_override_replaces_the_size_of_a_token():
    model = kv_model("llama-3.1-70b", tp=4, bytes_per_token=70_000)
    assert model.bytes_per_token() == 70_000
    assert model.rank_bytes(3) == 52_500


def test_override_that_does_not_divide_is_rounded_up_once():
    model = kv_model("llama-3.1-70b", tp=4, bytes_per_token=10)
    assert model.rank_bytes(1) == 3
    assert model.rank_bytes(1000) == 2500


def test_more_ranks_than_kv_heads_replicate_heads():
    model = kv_model("llama-3.1-70b", tp=16)
    assert model.rank_bytes(1) == 327_680 // 8


def test_latent_cache_is_one_tensor_that_every_rank_holds_whole():
    latent = KvModel("latent", layers=61, kv_heads=1, head_dim=576, dtype_bytes=2, tp=8, tensors=1)
    assert latent.rank_bytes(1) == latent.bytes_per_token() == 61 * 576 * 2


def test_ranks_that_cannot_share_the_heads_are_refused():
    with pytest.raises(ValueError, match=r"8 KV heads .* tp = 3"):
        kv_model("llama-3.1-70b", tp=3)


def test_unknown_model_names_the_known_ones():
    with pytest.raises(ValueError, match=r"llama-3\.1-70b, llama-3\.1-8b"):
        kv_model("llama-4-70b", tp=4)


def test_unknown_cache_type_names_the_known_ones():
    with pytest.raises(ValueError, match="bf16, fp8"):
        kv_model("llama-3.1-70b", kv_dtype="int4", tp=4)


@pytest.mark.parametrize("bytes_per_token", [0, -1])
def test_a_token_without_bytes_is_refused(bytes_per_token):
    with pytest.raises(ValueError, match="at least 1"):
        kv_model("llama-3.1-70b", tp=4, bytes_per_token=bytes_per_token)
