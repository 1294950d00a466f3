"""Multi-head attention whose dropout is a function of (seed, epoch, sample, layer)."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import KeyedDropout, SampleKeys


class KeyedAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2) with keyed dropout of its weights.

    softmax(Q K^T / sqrt(d) + mask) is computed explicitly in training, so that the weights of each sample are dropped
    by its key: O(L S) memory a head, as the original with need_weights. In evaluation, with p = 0, and for a batch
    without keys it is the original.
    """

    original = "MultiheadAttention"
    """The replaced class, for messages."""
    attention_dropout: KeyedDropout

    @classmethod
    def convert(cls, module: nn.MultiheadAttention, layer: int, sample_keys: SampleKeys) -> "KeyedAttention":
        """The same module with its parameters, hooks and name, and with keyed dropout."""
        module.__class__ = cls
        converted = cast(KeyedAttention, module)
        converted.attention_dropout = KeyedDropout(module.dropout, layer, 0, sample_keys)
        converted.attention_dropout.train(module.training)
        return converted

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Arguments, shapes and results of nn.MultiheadAttention."""
        if not self._is_keyed(query):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")  # as the original does
        batch_first = (tensor if self.batch_first else tensor.transpose(0, 1) for tensor in (query, key, value))
        q, k, v = self._projected(*batch_first)
        mask = _merged_mask(q, k, attn_mask, key_padding_mask)
        k, v, mask = self._extended(k, v, mask)
        scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = self.attention_dropout(weights)
        output = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        if not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(dim=1) if average_attn_weights else weights

    def _is_keyed(self, query: Tensor) -> bool:
        keys = self.attention_dropout.sample_keys.keys
        drops = self.training and self.dropout > 0.0
        if not drops or keys is None or query.is_nested or query.ndim != 3:
            return False
        return query.shape[0 if self.batch_first else 1] == len(keys)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, shape (batch, heads, length, width of a head)."""
        if self._qkv_same_embed_dim:
            projections = self.in_proj_weight.chunk(3)
        else:
            projections = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        bias = cast(Tensor | None, self.in_proj_bias)  # None with bias=False, which torch's types leave out
        biases = (None, None, None) if bias is None else bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, own_bias).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for x, weight, own_bias in zip((query, key, value), projections, biases, strict=True)
        )
        return q, k, v

    def _extended(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and mask with the positions of add_bias_kv and add_zero_attn, which are never masked."""
        positions: list[tuple[Tensor, Tensor]] = []
        shape = (len(k), self.num_heads, 1, self.head_dim)
        if self.bias_k is not None and self.bias_v is not None:
            learned = (bias.view(1, self.num_heads, 1, self.head_dim) for bias in (self.bias_k, self.bias_v))
            bias_k, bias_v = (bias.expand(shape) for bias in learned)
            positions.append((bias_k, bias_v))
        if self.add_zero_attn:
            positions.append((k.new_zeros(shape), v.new_zeros(shape)))
        for more_k, more_v in positions:
            k, v = torch.cat([k, more_k], dim=2), torch.cat([v, more_v], dim=2)
        return k, v, mask if mask is None else F.pad(mask, (0, len(positions)))


def _merged_mask(q: Tensor, k: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
    """Additive mask of the scores, broadcastable to (batch, heads, queries, keys); True in a boolean mask hides."""
    parts: list[Tensor] = []
    if attn_mask is not None:
        by_head = attn_mask.ndim == 3  # (batch * heads, queries, keys)
        parts.append(_added(attn_mask, q).view(*(q.shape[:2] if by_head else (1, 1)), q.shape[2], k.shape[2]))
    if key_padding_mask is not None:
        parts.append(_added(key_padding_mask, q).view(len(k), 1, 1, k.shape[2]))
    return sum(parts[1:], parts[0]) if parts else None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
