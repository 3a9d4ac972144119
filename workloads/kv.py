"""How many bytes of KV cache a model keeps per token, and how many of them one tensor-parallel rank holds.

The sizes come from the layer count, the KV heads and the head dimension of the model itself (not from hidden size /
heads, which is wrong for every grouped-query model) and from the type of the *cache*, which need not be the type of
the weights. A token costs `tensors * layers * kv_heads * head_dim * dtype_bytes`. Grouped-query attention keeps two
tensors, K and V, and splits its heads over the ranks. A latent cache (MLA) is one tensor with one head, so that the
same rule leaves it whole on every rank. Models whose layers forget (sliding windows) are not in the table yet: their
size is not linear in the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KV_DTYPE_BYTES: Final = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Attention:
    """The part of a model's architecture that sets the size of its KV cache."""

    layers: int
    kv_heads: int
    head_dim: int
    tensors: int = 2


# Source: the `config.json` published with each model (num_hidden_layers, num_key_value_heads, head_dim).
MODELS: Final = {
    "llama-3.1-70b": Attention(layers=80, kv_heads=8, head_dim=128),
    "llama-3.1-8b": Attention(layers=32, kv_heads=8, head_dim=128),
}


@dataclass(frozen=True, slots=True)
class KvModel:
    """The KV cache of one model on `tp` tensor-parallel ranks; all sizes in real bytes.

    `override_bytes_per_token` replaces the computed size of one token over all layers and ranks. Raises ValueError
    for a count below 1 and for a `tp` that neither divides the KV heads nor is a multiple of them.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int
    tp: int
    override_bytes_per_token: int | None = None
    tensors: int = 2

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

    @property
    def shards(self) -> int:
        """Distinct parts of the cache: with more ranks than KV heads, heads are replicated rather than split
        further."""
        return min(self.tp, self.kv_heads)

    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers and all shards."""
        if self.override_bytes_per_token is not None:
            return self.override_bytes_per_token
        return self.tensors * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    def rank_bytes(self, tokens: int) -> int:
        """Bytes of `tokens` tokens on one rank, all layers (rounded up where an override does not divide)."""
        return -(-tokens * self.bytes_per_token() // self.shards)

    def rank_layer_bytes(self, tokens: int) -> int:
        """Bytes of `tokens` tokens on one rank in one layer (rounded up where an override does not divide)."""
        return -(-tokens * self.bytes_per_token() // (self.shards * self.layers))


def kv_model(name: str, *, kv_dtype: str = "bf16", tp: int, bytes_per_token: int | None = None) -> KvModel:
    """The KV cache of a model of the table. Raises ValueError naming the known models or cache types."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"unknown kv_dtype {kv_dtype!r}; known: {', '.join(KV_DTYPE_BYTES)}")
    attention = MODELS[name]
    return KvModel(
        name=name,
        layers=attention.layers,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        dtype_bytes=KV_DTYPE_BYTES[kv_dtype],
        tp=tp,
        override_bytes_per_token=bytes_per_token,
        tensors=attention.tensors,
    )
