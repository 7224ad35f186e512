"""The Qwen3 architecture, small: RMSNorm, q/k norm, RoPE, grouped queries, SwiGLU, tied embeddings.

Parameter names are those of Hugging Face's Qwen3ForCausalLM, so that a state_dict is exported as
it is. Shapes: B sequences, T tokens, d = d_model, H query heads, G key/value heads, h = head_dim.
"""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional

MASKED = -1e9
ROWS = 512                  # query rows of one attention matmul: skips most masked columns


@dataclasses.dataclass
class Config:
    vocab: int
    layers: int = 3
    d_model: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    feed_forward: int = 256
    rope_theta: float = 1e6
    max_positions: int = 8192
    rms_eps: float = 1e-6

    @property
    def group(self):
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope_frequencies(config):
    """theta^(-2i/h) for i = 0 .. h/2-1, in double."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    return config.rope_theta ** -exponents


def rope_table(config, positions):
    """cos and sin, each (positions, h): the two halves hold the same angles."""
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rope_frequencies(config)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x, cos, sin):
    """RoPE, rotate-half form: element i turns together with element i + h/2."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        d, h = config.d_model, config.head_dim
        self.q_proj = nn.Linear(d, config.heads * h, bias=False)
        self.k_proj = nn.Linear(d, config.kv_heads * h, bias=False)
        self.v_proj = nn.Linear(d, config.kv_heads * h, bias=False)
        self.o_proj = nn.Linear(config.heads * h, d, bias=False)
        self.q_norm = RmsNorm(h, config.rms_eps)
        self.k_norm = RmsNorm(h, config.rms_eps)

    def project(self, x, cos, sin):
        """x (B, T, d) -> q (B, H, T, h), k and v (B, G, T, h); q and k normed and rotated."""
        def heads(y):
            return y.view(*x.shape[:2], -1, self.config.head_dim)
        q = self.q_norm(heads(self.q_proj(x))).transpose(1, 2)
        k = self.k_norm(heads(self.k_proj(x))).transpose(1, 2)
        v = heads(self.v_proj(x)).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def forward(self, x, cos, sin, mask, record):
        """x (B, T, d) -> (B, T, d). Appends the weights to the list `record`: a list of
        (B, H, rows, columns) for ROWS rows at a time, each with the columns up to its last row."""
        c, (batch, length, _) = self.config, x.shape
        q, k, v = self.project(x, cos, sin)
        q = q * c.head_dim ** -0.5
        kept, mixed = [], []
        for begin in range(0, length, ROWS):
            end = min(length, begin + ROWS)
            # The query heads of a group lie one after the other, so one matmul serves them all.
            grouped = (batch, c.kv_heads, c.group * (end - begin), -1)
            scores = q[:, :, begin:end].reshape(grouped) @ k[:, :, :end].transpose(-1, -2)
            scores = scores.view(batch, c.heads, end - begin, end)
            weights = scores.add_(mask[..., begin:end, :end]).softmax(-1)
            kept.append(weights)
            rows = weights.view(grouped) @ v[:, :, :end]
            mixed.append(rows.view(batch, c.heads, end - begin, c.head_dim))
        if record is not None:
            record.append(kept)
        mixed = torch.cat(mixed, dim=2).transpose(1, 2)
        return self.o_proj(mixed.reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.d_model, config.feed_forward, bias=False)
        self.up_proj = nn.Linear(config.d_model, config.feed_forward, bias=False)
        self.down_proj = nn.Linear(config.feed_forward, config.d_model, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RmsNorm(config.d_model, config.rms_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.d_model, config.rms_eps)
        self.mlp = Mlp(config)

    def forward(self, x, cos, sin, mask, record):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, record)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.d_model)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.norm = RmsNorm(config.d_model, config.rms_eps)


class Qwen3(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        cos, sin = rope_table(config, config.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._causal = {}
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 1 / math.sqrt(parameter.shape[1]))

    def causal_mask(self, length):
        """(T, T): 0 where a row may look, MASKED after it."""
        if length not in self._causal:
            self._causal = {length: torch.full((length, length), MASKED).triu(1)}
        return self._causal[length]

    def hidden(self, ids, positions=None, extra_mask=None, record=None):
        """ids (B, T) -> final normed hidden states (B, T, d).

        positions (B, T): RoPE positions, default 0 .. T-1. extra_mask (B, 1, T, T) is added.
        """
        length = ids.shape[1]
        if positions is None:
            cos, sin = self.cos[:length], self.sin[:length]
        else:
            cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        mask = self.causal_mask(length)
        if extra_mask is not None:
            mask = torch.minimum(mask, extra_mask)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask, record)
        return self.model.norm(x)

    def logits(self, hidden):
        """The embedding is also the output matrix: (…, d) -> (…, vocab)."""
        return hidden @ self.model.embed_tokens.weight.t()
