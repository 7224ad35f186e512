"""Greedy decoding of an exported model in PyTorch, with what stages 1, 3 and 4 of the course do.

It reads the Hugging Face folder, so it judges the very files that ship. The arithmetic is float32
in PyTorch's order: it emulates *which* tokens are attended to and *what* is quantised, not the bits
of the C++ engine.

- exact: every query attends to all cached tokens;
- sparse, k blocks: decoding picks k blocks of 32 tokens for each query head (block_selection);
- q8: each cached row of K and V is rounded to int8 with one scale, and each query in groups of 32,
  in prefill and in decoding.
"""

import dataclasses
import json
import math
import os
import struct

import torch

import bpe
from model import MASKED, Config, Qwen3

BLOCK = 32
PROBES = 8
Q8_GROUP = 32
PREFILL_CHUNK = 512


def read_safetensors(path):
    """{name: float32 tensor} of a safetensors file with bf16 tensors."""
    with open(path, "rb") as file:
        header_size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_size))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(data[begin:end], dtype=torch.int16)
        tensors[name] = raw.view(torch.bfloat16).float().view(entry["shape"])
    return tensors


def load(folder):
    """(model, tokenizer) of an exported folder."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        entry = json.load(file)
    config = Config(vocab=entry["vocab_size"], layers=entry["num_hidden_layers"],
                    d_model=entry["hidden_size"], heads=entry["num_attention_heads"],
                    kv_heads=entry["num_key_value_heads"], head_dim=entry["head_dim"],
                    feed_forward=entry["intermediate_size"], rope_theta=entry["rope_theta"],
                    max_positions=entry["max_position_embeddings"], rms_eps=entry["rms_norm_eps"])
    model = Qwen3(config)
    model.load_state_dict(read_safetensors(os.path.join(folder, "model.safetensors")))
    return model, bpe.Tokenizer.load(os.path.join(folder, "tokenizer.json"))


def quantise(x, group):
    """x (…, h) rounded to int8 codes times a scale, max/127 of each `group` elements."""
    parts = x.reshape(*x.shape[:-1], -1, group)
    scale = parts.abs().amax(-1, keepdim=True) / 127
    codes = (parts / torch.where(scale == 0, torch.ones_like(scale), scale)).round()
    return (codes.clamp(-127, 127) * scale).reshape(x.shape)


@dataclasses.dataclass
class Prefilled:
    """A prompt after prefill. keys, values: per layer (G, T, h). importance: (T,) in double."""
    keys: list
    values: list
    logits: torch.Tensor
    importance: torch.Tensor
    q8: bool


@torch.no_grad()
def prefill(model, ids, q8=False, with_importance=True):
    """Exact prefill of `ids`, in chunks of query rows.

    Without importance the last layer computes its last row only, which is all that decoding needs.
    """
    config, length = model.config, len(ids)
    cos, sin = model.cos[:length], model.sin[:length]
    keys, values = [], []
    importance = torch.zeros(length, dtype=torch.float64)
    x = model.model.embed_tokens(torch.tensor([ids]))
    for index, layer in enumerate(model.model.layers):
        q, k, v = (y[0] for y in layer.self_attn.project(layer.input_layernorm(x), cos, sin))
        if q8:
            q, k, v = quantise(q, Q8_GROUP), quantise(k, k.shape[-1]), quantise(v, v.shape[-1])
        keys.append(k)
        values.append(v)
        last = index == config.layers - 1
        first = length - 1 if last and not with_importance else 0
        mixed = torch.empty(config.heads, length - first, config.head_dim)
        for begin in range(first, length, PREFILL_CHUNK):
            end = min(length, begin + PREFILL_CHUNK)
            mask = torch.full((end - begin, end), MASKED).triu(begin + 1)
            for head in range(config.heads):
                group = head // config.group
                scores = q[head, begin:end] @ k[group, :end].t() / math.sqrt(config.head_dim)
                weights = scores.add_(mask).softmax(-1)
                if with_importance:
                    importance[:end] += weights.sum(0, dtype=torch.float64)
                mixed[head, begin - first:end - first] = weights @ v[group, :end]
        x = x[:, first:]
        x = x + layer.self_attn.o_proj(mixed.transpose(0, 1).reshape(1, length - first, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    logits = model.logits(model.model.norm(x[0, -1]))
    return Prefilled(keys, values, logits, importance, q8)


def largest(scores, count, excluded):
    """Indices of the `count` largest scores outside `excluded`; ties go to the smaller index."""
    order = sorted((b for b in range(len(scores)) if b not in excluded),
                   key=lambda b: (-scores[b], b))
    return order[:count]


def block_selection(query, keys, block_importance, k):
    """The blocks that one query head reads, as the course's stage 4 chooses them.

    query (h,), keys (n, h), block_importance: sums over the blocks of the prompt.
    """
    length = len(keys)
    blocks = (length + BLOCK - 1) // BLOCK
    # 1. Probe every step-th key of each block. Full blocks share one step.
    full = length // BLOCK
    probes = []
    if full:
        rows = keys[:full * BLOCK:BLOCK // PROBES] @ query
        probes = rows.view(full, PROBES).amax(1).tolist()
    if full < blocks:
        step = max(1, (length - full * BLOCK) // PROBES)
        probes.append(float((keys[full * BLOCK::step] @ query).max()))
    # 2. Half of the places go to the blocks that the prompt's own attention found important.
    importance = list(block_importance[:blocks]) + [0.0] * (blocks - len(block_importance))
    chosen = largest(importance, min((k + 1) // 2, blocks), set())
    # 3. The rest by probe. 4. The last block replaces the last of these.
    filled = largest(probes, k - len(chosen), set(chosen))
    if filled and blocks - 1 not in chosen and blocks - 1 not in filled:
        filled[-1] = blocks - 1
    return sorted(chosen + filled)


class Cache:
    """K and V of one layer with room for new tokens: (G, room, h) each."""

    def __init__(self, keys, values, extra):
        groups, self.length, size = keys.shape
        room = torch.zeros(groups, extra, size)
        self.keys = torch.cat([keys, room], dim=1)
        self.values = torch.cat([values, room], dim=1)

    def append(self, k, v):
        """k, v (G, h)."""
        self.keys[:, self.length], self.values[:, self.length] = k, v
        self.length += 1


def attend(config, q, cache, k_blocks, block_importance):
    """q (H, h) -> (H h,): exact (k_blocks None) or over selected blocks."""
    out = []
    for head in range(config.heads):
        group = head // config.group
        keys = cache.keys[group, :cache.length]
        values = cache.values[group, :cache.length]
        if k_blocks:
            chosen = block_selection(q[head], keys, block_importance, k_blocks)
            rows = torch.cat([torch.arange(b * BLOCK, min(cache.length, (b + 1) * BLOCK))
                              for b in chosen])
            keys, values = keys[rows], values[rows]
        weights = (keys @ q[head] / math.sqrt(config.head_dim)).softmax(0)
        out.append(weights @ values)
    return torch.cat(out)


@torch.no_grad()
def decode(model, prompt, max_tokens, end_id, k_blocks=None):
    """Greedy tokens after a Prefilled prompt, up to and with `end_id`."""
    config = model.config
    caches = [Cache(k, v, max_tokens) for k, v in zip(prompt.keys, prompt.values)]
    begins = range(0, len(prompt.importance), BLOCK)
    block_importance = [float(prompt.importance[b:b + BLOCK].sum()) for b in begins]
    logits, out = prompt.logits, []
    while True:
        token = int(logits.argmax())
        out.append(token)
        if token == end_id or len(out) == max_tokens:
            return out
        x = model.model.embed_tokens(torch.tensor([[token]]))
        for layer, cache in zip(model.model.layers, caches):
            at = slice(cache.length, cache.length + 1)
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), model.cos[at],
                                              model.sin[at])
            q, k, v = q[0, :, 0], k[0, :, 0], v[0, :, 0]
            if prompt.q8:
                q, k, v = (quantise(q, Q8_GROUP), quantise(k, k.shape[-1]),
                           quantise(v, v.shape[-1]))
            cache.append(k, v)
            mixed = attend(config, q, cache, k_blocks, block_importance)
            x = x + layer.self_attn.o_proj(mixed.view(1, 1, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = model.logits(model.model.norm(x[0, 0]))
