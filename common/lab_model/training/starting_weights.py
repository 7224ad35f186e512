"""Starting weights near the circuits that retrieval needs.

From ordinary random weights a model this small needs far more training to find "look for the same
name, then copy what follows". These starting weights make that quick to find; nothing of the
vocabulary or of the facts is written into them:

- "X" and " X" start with similar embeddings; embeddings are larger than usual, norm 3;
- queries start similar to keys, so a token attends to tokens like itself;
- in the last layer O starts as a multiple of V transposed (V orthogonal): what is attended to is
  copied to the output; weakly so in the other layers;
- in layer 0 the heads start as "look one (or two) tokens back": a direction that all embeddings
  share, rotated by RoPE.
"""

import torch
from torch import nn

import bpe
from model import rope_frequencies, rotate

EMBEDDING_NORM = 3.0
SAME_WORD = 0.8             # cosine between the embeddings of "X" and " X"
SHARED_DIRECTION = 0.7      # of every embedding, times EMBEDDING_NORM
FINAL_GAIN = 0.8            # final norm: with tied embeddings it sets the scale of the logits
QK_GAIN = 1.5               # q and k norms: how sharp attention starts
QUERY_LIKE_KEY = 0.7        # half of it in layer 0
COPY_LAST, COPY_EARLY = 0.6, 0.12
LOOK_BACK = (1, 2)          # tokens, of the first and second query head of each group in layer 0
LOOK_BACK_STRENGTH = 2.0


def similar(original, fresh, cosine):
    """A mix of two random matrices with the given cosine to `original` and the same scale."""
    return cosine * original + (1 - cosine ** 2) ** 0.5 * fresh


@torch.no_grad()
def apply(model, tokenizer):
    """Sets the starting weights of a freshly made Qwen3; uses torch's global random numbers."""
    config, decoder = model.config, model.model
    embeddings = decoder.embed_tokens.weight
    embeddings.mul_(EMBEDDING_NORM)
    for token, bare in tokenizer.vocab.items():
        spaced = tokenizer.vocab.get(bpe.SPACE + token)
        if spaced is not None:
            embeddings[bare] = similar(embeddings[spaced], embeddings[bare], SAME_WORD)
    decoder.norm.weight.fill_(FINAL_GAIN)
    for index, layer in enumerate(decoder.layers):
        attention = layer.self_attn
        attention.q_norm.weight.fill_(QK_GAIN)
        attention.k_norm.weight.fill_(QK_GAIN)
        layer.mlp.down_proj.weight.mul_(0.25)
        start_attention(config, attention, index)

    shared = torch.randn(config.d_model)
    shared /= shared.norm()
    embeddings.mul_(0.75).add_(SHARED_DIRECTION * EMBEDDING_NORM * shared)
    start_looking_back(config, decoder.layers[0].self_attn, shared)


def start_attention(config, attention, index):
    """Queries like keys, and O like V transposed, head by head."""
    size, last = config.head_dim, index == config.layers - 1
    match = QUERY_LIKE_KEY if index else 0.5 * QUERY_LIKE_KEY
    copy = COPY_LAST if last else COPY_EARLY
    q, k = attention.q_proj.weight, attention.k_proj.weight         # (H h, d), (G h, d)
    v, o = attention.v_proj.weight, attention.o_proj.weight         # (G h, d), (d, H h)
    o.mul_(0.5 if last else 0.15)
    for group in range(config.kv_heads):
        nn.init.orthogonal_(v[group * size:(group + 1) * size])
    for head in range(config.heads):
        mine = slice(head * size, (head + 1) * size)
        group = head // config.group
        shared = slice(group * size, (group + 1) * size)
        q[mine] = similar(k[shared], q[mine], match)
        o[:, mine] = copy * v[shared].t() + (0.1 if last else 0.5) * o[:, mine]


def start_looking_back(config, attention, shared):
    """Layer 0: keys carry a fixed vector on the fast RoPE pairs, queries the same turned back."""
    frequencies = rope_frequencies(config).float()
    fast = (frequencies > 0.1).float().repeat(2)
    fast /= fast.norm()
    size = config.head_dim
    for head in range(config.heads):
        angles = -LOOK_BACK[head % config.group] * torch.cat([frequencies, frequencies])
        turned = rotate(fast, angles.cos(), angles.sin())
        mine = slice(head * size, (head + 1) * size)
        attention.q_proj.weight[mine] += LOOK_BACK_STRENGTH * torch.outer(turned, shared)
    for group in range(config.kv_heads):
        mine = slice(group * size, (group + 1) * size)
        attention.k_proj.weight[mine] += LOOK_BACK_STRENGTH * torch.outer(fast, shared)
