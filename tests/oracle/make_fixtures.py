#!/usr/bin/env python3
"""Makes the fixtures that kvlab's engine is compared with.

    make_fixtures.py                      all the tiny random models
    make_fixtures.py --only NAME          one of them
    make_fixtures.py --lab-model DIR      expected.safetensors of the lab model

Every number in expected.safetensors was computed by Hugging Face
transformers: eager attention, float32, one thread, from the weights as they
stand in the file. Prints a Markdown table of measured errors (README.md).
"""

import argparse
import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

import float64_reference

FIXTURES = Path(__file__).resolve().parent / "fixtures"


@dataclass
class Spec:
    """One tiny random model. Widths are odd on purpose where it is free."""
    name: str
    seed: int
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    theta: float
    tokens: int
    hidden: int = 64
    intermediate: int = 96
    vocab: int = 160
    layers: int = 2
    eps: float = 1e-6
    max_shard_size: str = "1GB"
    # config.json as transformers 4 wrote it (and published Qwen3 files have
    # it): top-level rope_theta and torch_dtype.
    old_config: bool = False
    # tie_word_embeddings true although the file has its own lm_head.weight.
    claims_tied: bool = False


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SPECS = [
    Spec("mha_d32_tied_f32", 1, F32, 3, 3, 32, True, 1e4, 130, hidden=48,
         intermediate=72),
    Spec("gqa2_d64_untied_f32", 2, F32, 2, 1, 64, False, 1e6, 100, hidden=48,
         intermediate=64),
    Spec("gqa4_d128_tied_bf16", 3, BF16, 4, 1, 128, True, 1e6, 129, hidden=48,
         intermediate=64, vocab=192, old_config=True),
    Spec("gqa2_d128_untied_f16", 4, F16, 4, 2, 128, False, 1e6, 128,
         hidden=48, intermediate=64, vocab=131),
    Spec("gqa4_d32_sharded_bf16", 5, BF16, 8, 2, 32, False, 1e4, 127,
         intermediate=70, layers=3, max_shard_size="200KB"),
    Spec("mha_d80_eps_f16", 6, F16, 2, 2, 80, True, 1e4, 97,
         intermediate=50, vocab=129, eps=1e-3),
    Spec("claims_tied_bf16", 7, BF16, 2, 1, 32, False, 1e6, 100, hidden=56,
         intermediate=64, vocab=128, claims_tied=True),
]


# ---------------------------------------------------------------- the model

def fill_weights(model, seed):
    """Seeded weights of a scale at which mistakes show.

    Attention scores get a standard deviation of about 2 (q_norm and k_norm
    gains around 1.4), so that few tokens carry most of the weight, and logits
    one of about 3. RandomState's stream is frozen by numpy, so the files can
    be made again with later versions.
    """
    rng = np.random.RandomState(seed)
    hidden = model.config.hidden_size
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            shape = tuple(parameter.shape)
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                values = rng.uniform(0.8, 2.0, shape)
            elif "norm" in name:
                values = rng.uniform(0.5, 1.5, shape)
            elif name in ("model.embed_tokens.weight", "lm_head.weight"):
                values = rng.standard_normal(shape) * 3 / hidden ** 0.5
            else:
                values = rng.standard_normal(shape) / shape[1] ** 0.5
            parameter.copy_(torch.from_numpy(values))


def write_model(spec, folder):
    config = Qwen3Config(
        vocab_size=spec.vocab, hidden_size=spec.hidden,
        intermediate_size=spec.intermediate, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim, rms_norm_eps=spec.eps, attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": spec.theta},
        tie_word_embeddings=spec.tied, max_position_embeddings=512,
        bos_token_id=0, eos_token_id=1)
    model = Qwen3ForCausalLM(config)
    fill_weights(model, spec.seed)
    model.to(spec.dtype).save_pretrained(
        folder, max_shard_size=spec.max_shard_size)

    path = folder / "config.json"
    written = json.loads(path.read_text())
    if spec.claims_tied:
        written["tie_word_embeddings"] = True
    if spec.old_config:
        written["rope_theta"] = written.pop("rope_parameters")["rope_theta"]
        written["rope_scaling"] = None
        written["torch_dtype"] = written.pop("dtype")
        del written["layer_types"]
        del written["transformers_version"]
    if spec.claims_tied or spec.old_config:
        path.write_text(json.dumps(dict(sorted(written.items())), indent=2)
                        + "\n")


def load_model(folder):
    model = Qwen3ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


# ------------------------------------------------------------ the reference

@torch.no_grad()
def run_library(model, ids):
    """One pass over all tokens. Returns name -> float32 tensor, and the
    attention mass in float64."""
    residual, attention = [], []
    hooks = [
        block.register_forward_pre_hook(
            lambda _, args: residual.append(args[0][0, -1].clone()))
        for block in [*model.model.layers, model.model.norm]
    ] + [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, args: attention.append(args[0][0, -1].clone()))
        for layer in model.model.layers
    ]
    result = model(ids[None], use_cache=True, output_attentions=True)
    for hook in hooks:
        hook.remove()
    cache = result.cache.layers
    return {
        "logits": result.logits[0],
        "hidden_last": torch.stack(residual),
        "attention_last": torch.stack(attention),
        "k_last": torch.stack([c.keys[0, :, -1] for c in cache]),
        "v_last": torch.stack([c.values[0, :, -1] for c in cache]),
        "attention_mass": torch.stack(
            [a[0].double().sum(1) for a in result.attentions]),
    }, result.attentions


def save_expected(folder, tensors):
    about = (f"transformers {transformers.__version__}, torch "
             f"{torch.__version__.split('+')[0]}, eager attention, float32")
    save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()},
              folder / "expected.safetensors", metadata={"about": about})


# ----------------------------------------------------- how exact it is

def relative(a, b):
    """max|a-b| / max|b|, the measure of the tests."""
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / b.abs().max())


@torch.no_grad()
def measure(name, model, folder, ids, logits, attentions):
    """One row of the README's table."""
    weights = {}
    for file in sorted(folder.glob("model*.safetensors")):
        weights.update(load_file(file))
    config = model.config
    positions = torch.arange(len(ids))
    theta = config.rope_parameters["rope_theta"]
    exact = float64_reference.inverse_frequencies(theta, config.head_dim)
    library = model.model.rotary_emb.inv_freq

    def against(inv_freq):
        angles = float64_reference.rope_angles(positions, inv_freq)
        return float64_reference.logits(weights, config, ids, angles)

    # The same library, token by token: other matrix shapes, so other orders
    # of summation in the same precision.
    rows, cache = [], None
    for token in ids:
        step = model(token[None, None], cache=cache, use_cache=True)
        rows.append(step.logits[0, 0])
        cache = step.cache
    one_by_one = torch.stack(rows)

    # Tokens that carry the weight: exp(entropy), mean over queries from 32 on.
    support = np.mean([
        float(torch.special.entr(a[0, :, 32:].double()).sum(-1).exp().mean())
        for a in attentions])
    wrong = int((library != exact.float()).sum())
    row = [name, f"{float(logits.abs().max()):.1f}", f"{support:.1f}",
           f"{relative(one_by_one, logits):.1e}",
           f"{relative(logits, against(library)):.1e}",
           f"{relative(logits, against(exact.float())):.1e}",
           f"{relative(logits, against(exact)):.1e}",
           f"{wrong}/{len(exact)}"]
    print("| " + " | ".join(row) + " |", flush=True)


def make_tiny(spec):
    folder = FIXTURES / spec.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_model(spec, folder)
    model = load_model(folder)
    if spec.claims_tied:
        stored = load_file(folder / "model.safetensors")
        assert not torch.equal(stored["lm_head.weight"],
                               stored["model.embed_tokens.weight"])
        assert torch.equal(model.lm_head.weight, stored["lm_head.weight"])
    rng = np.random.RandomState(1000 + spec.seed)
    ids = torch.from_numpy(rng.randint(0, spec.vocab, spec.tokens))
    tensors, attentions = run_library(model, ids)
    positions = torch.arange(spec.tokens)
    save_expected(folder, {"input_ids": ids, "positions": positions,
                           **tensors})
    measure(spec.name, model, folder, ids, tensors["logits"], attentions)


# ------------------------------------------------------------- the lab model

NAME, VALUE = "Zara", "ramen"
NEEDLE = "Zara's favorite food is ramen."
QUESTION = "What is Zara's favorite food?"
PROMPT_TOKENS = 2061
POSITIONS = [0, 31, 32, 511, 1024, 1535, 2047, 2060]


def needle_prompt(facts, tokenizer, seed=1):
    """A ChatML prompt of exactly PROMPT_TOKENS, the needle in the middle.

    Facts are added while the prompt is short and random ones dropped while it
    is long, until it fits.
    """
    rng = random.Random(seed)
    names = [n for n in facts["names"] if n != NAME]

    def fact():
        attribute = rng.choice(facts["attributes"])
        values = [v for v in attribute["values"] if VALUE not in v.lower()]
        name, value = rng.choice(names), rng.choice(values)
        a = "an" if value[0].lower() in "aeiou" else "a"
        return attribute["fact"].format(name=name, value=value, a=a)

    filler = []
    for _ in range(100_000):
        middle = len(filler) // 2
        lines = filler[:middle] + [NEEDLE] + filler[middle:]
        text = (f"<|im_start|>user\n{' '.join(lines)}\n{QUESTION}<|im_end|>\n"
                "<|im_start|>assistant\n")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) == PROMPT_TOKENS:
            return text, ids
        if len(ids) < PROMPT_TOKENS:
            filler.append(fact())
        else:
            filler.pop(rng.randrange(len(filler)))
    raise SystemExit(f"no prompt of exactly {PROMPT_TOKENS} tokens found")


@torch.no_grad()
def greedy(model, ids, max_tokens=40):
    """The answer's ids, its end token included, and the logits [m, vocab]
    that each was chosen from."""
    eos = model.generation_config.eos_token_id
    ends = set(eos) if isinstance(eos, list) else {eos}
    step = model(ids[None], use_cache=True, logits_to_keep=1)
    answer, rows = [], []
    while True:
        rows.append(step.logits[0, -1])
        answer.append(int(rows[-1].argmax()))
        if answer[-1] in ends or len(answer) == max_tokens:
            return answer, torch.stack(rows)
        step = model(torch.tensor([[answer[-1]]]), cache=step.cache,
                     use_cache=True)


def make_lab_model(directory, facts_file):
    folder = FIXTURES / "lab_model"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    facts = json.loads(facts_file.read_text(encoding="utf-8"))
    text, prompt = needle_prompt(facts, tokenizer)
    automatic = transformers.AutoTokenizer.from_pretrained(directory)
    if automatic.encode(text, add_special_tokens=False) != prompt:
        raise SystemExit("AutoTokenizer and tokenizer.json disagree")
    model = load_model(directory)
    ids = torch.tensor(prompt)
    tensors, attentions = run_library(model, ids)
    answer, answer_logits = greedy(model, ids)
    top = answer_logits.topk(2).values
    print("answer:", repr(tokenizer.decode(answer)), "smallest lead of the "
          f"chosen token: {float((top[:, 0] - top[:, 1]).min()):.2f}\n")
    measure("lab_model", model, directory, ids, tensors["logits"], attentions)
    importance = tensors.pop("attention_mass").sum((0, 1))
    tensors["logits"] = tensors["logits"][POSITIONS]
    save_expected(folder, {
        "input_ids": ids, "positions": torch.tensor(POSITIONS), **tensors,
        "importance": importance, "answer_ids": torch.tensor(answer),
        "answer_logits": answer_logits})


def main():
    parser = argparse.ArgumentParser(
        description="Makes the oracle's fixtures with transformers.")
    parser.add_argument("--lab-model", type=Path, metavar="DIR",
                        help="make lab_model/expected.safetensors from DIR")
    parser.add_argument("--facts", type=Path, metavar="FILE",
                        help="facts for its prompt (default DIR/facts.json)")
    parser.add_argument("--only", metavar="NAME",
                        choices=[spec.name for spec in SPECS],
                        help="make this tiny model alone")
    options = parser.parse_args()

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    if options.lab_model:
        facts = options.facts or options.lab_model / "facts.json"
        make_lab_model(options.lab_model, facts)
        return
    print("| fixture | max logit | tokens attended | one by one | f64 |"
          " f64, rounded frequencies | f64, exact angles | inv_freq off |")
    print("|---|---|---|---|---|---|---|---|")
    for spec in SPECS:
        if options.only in (None, spec.name):
            make_tiny(spec)


if __name__ == "__main__":
    main()
