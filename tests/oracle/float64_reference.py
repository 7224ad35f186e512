"""Qwen3 in float64, written from the formulas alone.

The library computes norms, RoPE and softmax in float32 even for a float64
model, so it cannot say how far its own float32 result is from the truth.
This one can. It shares no code with the library: if both agree to a few
1e-6, both read the weights the same way.
"""

import torch


def inverse_frequencies(theta, head_dim):
    """theta^(-2i/head_dim), float64 [head_dim / 2]."""
    i = torch.arange(0, head_dim, 2, dtype=torch.float64)
    return theta ** (-i / head_dim)


def rope_angles(positions, inv_freq):
    """Angles in the precision of inv_freq, returned as float64 [n, d / 2].

    A float32 inv_freq gives the float32 product (what engines do); a float64
    one gives the exact angle.
    """
    angles = positions.to(inv_freq.dtype)[:, None] * inv_freq[None, :]
    return angles.double()


def rms_norm(x, gain, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def rotate(x, angles):
    """Rotate-half RoPE: element i pairs with i + d/2. x [heads, n, d]."""
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def logits(weights, config, input_ids, angles):
    """All logits, float64 [n, vocab].

    weights: name -> tensor as stored in the file (any dtype).
    angles:  float64 [n, head_dim / 2] from rope_angles().
    """
    w = {name: tensor.double() for name, tensor in weights.items()}
    n = len(input_ids)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    d, eps = config.head_dim, config.rms_norm_eps
    future = torch.ones(n, n, dtype=torch.bool).triu(1)

    x = w["model.embed_tokens.weight"][input_ids]
    for layer in range(config.num_hidden_layers):
        p = f"model.layers.{layer}."
        h = rms_norm(x, w[p + "input_layernorm.weight"], eps)
        q, k, v = (
            (h @ w[p + f"self_attn.{m}_proj.weight"].T)
            .view(n, count, d).transpose(0, 1)
            for m, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        q = rotate(rms_norm(q, w[p + "self_attn.q_norm.weight"], eps), angles)
        k = rotate(rms_norm(k, w[p + "self_attn.k_norm.weight"], eps), angles)
        out = []
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = (q[head] @ k[kv].T) / d ** 0.5
            weight = scores.masked_fill(future, -torch.inf).softmax(-1)
            out.append(weight @ v[kv])
        x = x + torch.cat(out, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[p + "mlp.down_proj.weight"].T

    x = rms_norm(x, w["model.norm.weight"], eps)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return x @ head.T
