"""Every model of the table: its KV bytes, derived by hand from the published configuration, and what moves when."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.kv import MODELS, KvModel, kv_model
from workloads.prefill import PrefillTiming
from workloads.serving import KvStream

TIMING = PrefillTiming(8.82, 0.0586, 1.616e-6, 18.0, chunk_tokens=256)

# Bytes of a token over all layers and heads in BF16: tensors x layers x heads x dimension x 2.
BYTES_PER_TOKEN = {
    "llama-3.1-8b": 131_072,  # 2 x 32 x 8 x 128 x 2
    "llama-3.1-70b": 327_680,  # 2 x 80 x 8 x 128 x 2
    "llama-3.1-405b": 516_096,  # 2 x 126 x 8 x 128 x 2
    "llama-2-70b": 327_680,  # as its successor
    "qwen3-8b": 147_456,  # 2 x 36 x 8 x 128 x 2
    "qwen3-32b": 262_144,  # 2 x 64 x 8 x 128 x 2
    "qwen3-30b-a3b": 98_304,  # 2 x 48 x 4 x 128 x 2
    "qwen3-235b-a22b": 192_512,  # 2 x 94 x 4 x 128 x 2
    "deepseek-v3": 70_272,  # 61 x (512 + 64) x 2: one latent tensor
    "deepseek-r1": 70_272,
    "gpt-oss-20b": 49_152,  # 2 x 24 x 8 x 64 x 2, while no window is full
    "gpt-oss-120b": 73_728,  # 2 x 36 x 8 x 64 x 2
}


def test_the_table_holds_exactly_the_models_with_a_vector():
    assert set(MODELS) == set(BYTES_PER_TOKEN)


@pytest.mark.parametrize(("name", "expected"), BYTES_PER_TOKEN.items())
def test_a_token_of_each_model_in_bf16_and_half_of_it_in_fp8(name, expected):
    assert kv_model(name, tp=1).bytes_per_token() == expected
    assert kv_model(name, tp=1).rank_bytes(100) == 100 * expected
    assert kv_model(name, kv_dtype="fp8", tp=1).rank_bytes(100) == 50 * expected


@pytest.mark.parametrize("name", ["llama-3.1-405b", "qwen3-32b", "gpt-oss-120b"])
def test_eight_heads_split_evenly_over_eight_ranks(name):
    assert kv_model(name, tp=8).rank_bytes(5_000) * 8 == kv_model(name, tp=1).rank_bytes(5_000)


def test_four_heads_on_eight_ranks_are_held_twice():
    assert kv_model("qwen3-235b-a22b", tp=8).rank_bytes(1) == 192_512 // 4


@pytest.mark.parametrize("tp", [1, 4, 8, 16])
def test_a_latent_cache_is_whole_on_every_rank(tp):
    assert kv_model("deepseek-v3", tp=tp).rank_bytes(4_096) == 4_096 * 61 * 576 * 2 == 287_834_112


@pytest.mark.parametrize(("name", "sliding", "full"), [("gpt-oss-20b", 12, 12), ("gpt-oss-120b", 18, 18)])
def test_sliding_layers_stop_growing_at_128_tokens(name, sliding, full):
    model = kv_model(name, tp=1)
    layer_bytes = 2 * 8 * 64 * 2
    assert model.rank_bytes(128) == (sliding + full) * 128 * layer_bytes
    assert model.rank_bytes(129) - model.rank_bytes(128) == full * layer_bytes
    assert model.rank_bytes(66_700) == (full * 66_700 + sliding * 128) * layer_bytes
    assert model.rank_layer_bytes(1_100) == 1_100 * layer_bytes


def test_a_context_of_gpt_oss_120b_is_half_of_what_a_linear_rule_says():
    model = kv_model("gpt-oss-120b", tp=1)
    assert model.rank_bytes(65_536) / (65_536 * model.bytes_per_token()) == pytest.approx(0.5, abs=0.001)


@given(st.sampled_from(sorted(MODELS)), st.integers(0, 3_000), st.integers(1, 3_000), st.sampled_from([1, 2, 4]))
def test_head_and_tail_are_the_cache_of_the_whole_context(name, cached, new, tp):
    model = kv_model(name, tp=tp)
    assert model.rank_head_bytes(cached, new) + model.rank_bytes(new) == model.rank_bytes(cached + new)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 600), st.integers(1, 600))
def test_a_layerwise_stream_never_runs_ahead_of_the_layers_that_keep_its_tokens(cached, new):
    """Counted token by token: a full layer keeps all, a sliding one (every other, from the first) the last 128."""
    model = kv_model("gpt-oss-20b", tp=4)
    plan = TIMING.plan(new, cached, model.layers)
    stream = KvStream(plan, model, "layerwise", start_s=2.0)
    assert stream.total_bytes == model.rank_bytes(cached + new)
    seen, now_s = 0, 2.0
    while (next_s := stream.next_release_s(now_s)) is not None:
        now_s = next_s
        kept = 0
        for position, end_of_chunk in _positions(plan):
            ended = sum(1 for layer in range(24) if plan.layer_end_s(end_of_chunk, layer) <= now_s - 2.0 + 1e-9)
            in_window = position >= new - 128
            kept += sum(1 for layer in range(ended) if layer % 2 or in_window)
        expected = stream.head_bytes + kept * 2 * 2 * 64 * 2
        assert stream.bytes_at(now_s) == expected
        assert stream.bytes_at(now_s) >= seen
        seen = stream.bytes_at(now_s)
    assert seen == stream.total_bytes


def _positions(plan):
    first = 0
    for index, chunk in enumerate(plan.chunks):
        for position in range(first, first + chunk.new_tokens):
            yield position, index
        first += chunk.new_tokens


def test_a_prefix_that_stays_leaves_the_window_of_the_new_tokens_to_the_tail():
    model = kv_model("gpt-oss-20b", tp=1)
    plan = TIMING.plan(1_000, 50_000, model.layers)
    assert KvStream(plan, model, "pull", 0.0, head_moves=False).total_bytes == model.rank_bytes(1_000)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_survives_the_way_to_the_agents_as_json(name):
    model = kv_model(name, kv_dtype="fp8", tp=2, bytes_per_token=None)
    assert KvModel(**json.loads(json.dumps(asdict(model)))) == model


def test_an_override_makes_a_sliding_model_linear():
    model = kv_model("gpt-oss-20b", tp=4, bytes_per_token=40_000)
    assert model.rank_bytes(10_000) == 100_000_000
    assert model.rank_head_bytes(9_000, 1_000) == model.rank_bytes(9_000)


@pytest.mark.parametrize(("sliding", "window"), [(24, 128), (12, 0), (0, 128)])
def test_sliding_layers_without_a_window_or_without_a_full_layer_are_refused(sliding, window):
    with pytest.raises(ValueError, match=r"sliding|slide"):
        KvModel("odd", 24, 8, 64, 2, 1, sliding_layers=sliding, window_tokens=window)
