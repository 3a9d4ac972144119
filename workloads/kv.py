"""How many bytes of KV cache a model keeps, and how many of them one tensor-parallel rank holds.

The sizes come from the layer count, the KV heads and the head dimension of the model itself (not from hidden size /
heads, which is wrong for every grouped-query model) and from the type of the *cache*, which need not be the type of
the weights. One token in one layer is `tensors * kv_heads * head_dim * dtype_bytes`.

    grouped query    two tensors, K and V; the heads are split over the ranks
    latent (MLA)     one tensor with one head: the same rule leaves it whole on every rank
    sliding window   `sliding_layers` of the layers keep only the last `window_tokens` tokens, so that the bytes of n
                     tokens, (full layers) * n + (sliding layers) * min(n, window), are not linear in n

The table, its sources and worked sizes are in docs/reference/models.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

KV_DTYPE_BYTES: Final = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Attention:
    """The part of a model's architecture that sets the size of its KV cache. `sliding_layers` of the `layers` attend
    over the last `window_tokens` tokens only; they alternate with the others, a sliding one first."""

    layers: int
    kv_heads: int
    head_dim: int
    tensors: int = 2
    sliding_layers: int = 0
    window_tokens: int = 0


# Source: the `config.json` published with each model: num_hidden_layers, num_key_value_heads, head_dim (hidden_size /
# num_attention_heads where the file has no head_dim); for MLA kv_lora_rank + qk_rope_head_dim; for gpt-oss layer_types
# and sliding_window. Llama-3.1-405B was first published with its 8 KV heads repeated to 16; the cache holds 8.
MODELS: Final = {
    "deepseek-r1": Attention(layers=61, kv_heads=1, head_dim=512 + 64, tensors=1),
    "deepseek-v3": Attention(layers=61, kv_heads=1, head_dim=512 + 64, tensors=1),
    "gpt-oss-120b": Attention(layers=36, kv_heads=8, head_dim=64, sliding_layers=18, window_tokens=128),
    "gpt-oss-20b": Attention(layers=24, kv_heads=8, head_dim=64, sliding_layers=12, window_tokens=128),
    "llama-2-70b": Attention(layers=80, kv_heads=8, head_dim=128),
    "llama-3.1-405b": Attention(layers=126, kv_heads=8, head_dim=128),
    "llama-3.1-70b": Attention(layers=80, kv_heads=8, head_dim=128),
    "llama-3.1-8b": Attention(layers=32, kv_heads=8, head_dim=128),
    "qwen3-235b-a22b": Attention(layers=94, kv_heads=4, head_dim=128),
    "qwen3-30b-a3b": Attention(layers=48, kv_heads=4, head_dim=128),
    "qwen3-32b": Attention(layers=64, kv_heads=8, head_dim=128),
    "qwen3-8b": Attention(layers=36, kv_heads=8, head_dim=128),
}


@dataclass(frozen=True, slots=True)
class KvModel:
    """The KV cache of one model on `tp` tensor-parallel ranks; all sizes in real bytes.

    `override_bytes_per_token` replaces the computed size of one token over all layers and ranks, and makes the size
    linear in the tokens. Raises ValueError for a count below 1, for a `tp` that neither divides the KV heads nor is a
    multiple of them, and for sliding layers without a window or without a full layer beside them.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int
    tp: int
    override_bytes_per_token: int | None = None
    tensors: int = 2
    sliding_layers: int = 0
    window_tokens: int = 0

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "dtype_bytes", "tp", "tensors"):
            if getattr(self, field) < 1:
                raise ValueError(f"KV model {self.name}: {field} is {getattr(self, field)}; it must be at least 1")
        if self.override_bytes_per_token is not None and self.override_bytes_per_token < 1:
            raise ValueError(
                f"KV model {self.name}: bytes per token is {self.override_bytes_per_token}; it must be at least 1 "
                "(leave it out to compute it from the model)"
            )
        if self.kv_heads % self.tp and self.tp % self.kv_heads:
            raise ValueError(
                f"KV model {self.name}: {self.kv_heads} KV heads cannot be spread over tp = {self.tp} ranks; "
                "choose a tp that divides the heads or is a multiple of them"
            )
        if not 0 <= self.sliding_layers < self.layers:
            raise ValueError(
                f"KV model {self.name}: {self.sliding_layers} of {self.layers} layers slide; at least one must not"
            )
        if (self.sliding_layers > 0) != (self.window_tokens > 0):
            raise ValueError(
                f"KV model {self.name}: {self.sliding_layers} sliding layers with a window of {self.window_tokens} "
                "tokens; give both or neither"
            )

    @property
    def shards(self) -> int:
        """Distinct parts of the cache: with more ranks than KV heads, heads are replicated rather than split
        further."""
        return min(self.tp, self.kv_heads)

    @property
    def slides(self) -> bool:
        """Whether the size is not linear in the tokens, because layers forget."""
        return self.sliding_layers > 0 and self.override_bytes_per_token is None

    @property
    def layer_unit_bytes(self) -> int:
        """Bytes of one token in one layer on one rank; the heads divide evenly over the shards."""
        return self.tensors * self.kv_heads // self.shards * self.head_dim * self.dtype_bytes

    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers and all shards, as long as no window is full."""
        if self.override_bytes_per_token is not None:
            return self.override_bytes_per_token
        return self.tensors * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    def rank_bytes(self, tokens: int) -> int:
        """Bytes that `tokens` tokens leave in one rank's cache, all layers (rounded up where an override does not
        divide)."""
        if self.slides:
            full_layers = self.layers - self.sliding_layers
            kept = full_layers * tokens + self.sliding_layers * min(tokens, self.window_tokens)
            return kept * self.layer_unit_bytes
        return -(-tokens * self.bytes_per_token() // self.shards)

    def rank_head_bytes(self, cached_tokens: int, new_tokens: int) -> int:
        """Bytes of a cached prefix that a decode instance still needs once `new_tokens` follow it, on one rank.

        All of them, `rank_bytes(cached_tokens)`, unless layers slide: there the new tokens push the prefix out of the
        window. What is left is rank_bytes(c + n) - rank_bytes(n), so that head and tail are exactly the cache of
        c + n tokens.
        """
        if self.slides:
            return self.rank_bytes(cached_tokens + new_tokens) - self.rank_bytes(new_tokens)
        return self.rank_bytes(cached_tokens)

    def rank_layer_bytes(self, tokens: int) -> int:
        """Bytes of `tokens` tokens on one rank in one layer, a full one where others slide (rounded up where an
        override does not divide)."""
        if self.slides:
            return tokens * self.layer_unit_bytes
        return -(-tokens * self.bytes_per_token() // (self.shards * self.layers))

    def sliding_before(self, layers: int) -> int:
        """How many of the first `layers` layers slide: every other one, beginning with the first, until
        `sliding_layers` are reached."""
        return min((layers + 1) // 2, self.sliding_layers)


def kv_model(name: str, *, kv_dtype: str = "bf16", tp: int, bytes_per_token: int | None = None) -> KvModel:
    """The KV cache of a model of the table. Raises ValueError naming the known models or cache types."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"unknown kv_dtype {kv_dtype!r}; known: {', '.join(KV_DTYPE_BYTES)}")
    return KvModel(
        name=name,
        dtype_bytes=KV_DTYPE_BYTES[kv_dtype],
        tp=tp,
        override_bytes_per_token=bytes_per_token,
        **asdict(MODELS[name]),
    )
