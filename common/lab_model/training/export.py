"""Writes a checkpoint as a Hugging Face folder: Qwen3ForCausalLM in bf16 and its tokenizer.

    export.py --checkpoint checkpoint.pt --merges merges.json --out FOLDER
"""

import argparse
import json
import os
import struct

import torch

import bpe

TRAINED_CONTEXT = 4096      # tokens; longer prompts work less and less well
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_json(path, data):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False)
        file.write("\n")


def write_safetensors(path, tensors):
    """bf16 tensors in name order; the header is padded so that the data begins 8-byte aligned."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in sorted(tensors.items()):
        blob = tensor.contiguous().bfloat16().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def model_config(config, tokenizer):
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "vocab_size": config["vocab"], "hidden_size": config["d_model"],
        "intermediate_size": config["feed_forward"], "num_hidden_layers": config["layers"],
        "num_attention_heads": config["heads"], "num_key_value_heads": config["kv_heads"],
        "head_dim": config["head_dim"], "hidden_act": "silu", "rms_norm_eps": config["rms_eps"],
        "rope_theta": config["rope_theta"], "rope_scaling": None, "tie_word_embeddings": True,
        "attention_bias": False, "attention_dropout": 0.0,
        "max_position_embeddings": config["max_positions"],
        "kvlab_trained_context": TRAINED_CONTEXT,
        "use_sliding_window": False, "sliding_window": None,
        "max_window_layers": config["layers"], "torch_dtype": "bfloat16", "use_cache": True,
        "initializer_range": 0.02, "bos_token_id": tokenizer.added["<|endoftext|>"],
        "eos_token_id": tokenizer.added["<|im_end|>"]}


def tokenizer_json(tokenizer):
    """The same layout as Qwen's own tokenizer.json."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": bpe.QWEN_SPLIT}, "behavior": "Isolated",
             "invert": False}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for token, i in tokenizer.added.items()]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": tokenizer.vocab,
                  "merges": [" ".join(pair) for pair in tokenizer.merges]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--merges", required=True)
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--latest", action="store_true",
                        help="the latest weights even if the checkpoint has an average")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    state = torch.load(args.checkpoint)
    tokenizer = bpe.Tokenizer.load(args.merges)
    weights = state["model"] if args.latest or not state["averaged"] else state["average"]
    end, pad = tokenizer.added["<|im_end|>"], tokenizer.added["<|endoftext|>"]

    def to(name):
        return os.path.join(args.out, name)
    write_safetensors(to("model.safetensors"), weights)
    write_json(to("config.json"), model_config(state["config"], tokenizer))
    write_json(to("generation_config.json"), {
        "bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad, "do_sample": False,
        "max_new_tokens": 40})
    write_json(to("tokenizer.json"), tokenizer_json(tokenizer))
    write_json(to("tokenizer_config.json"), {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "add_bos_token": False,
        "add_prefix_space": False, "model_max_length": state["config"]["max_positions"],
        "clean_up_tokenization_spaces": False, "errors": "replace",
        "split_special_tokens": False, "chat_template": CHAT_TEMPLATE})
    for name in sorted(os.listdir(args.out)):
        print(f"{os.path.getsize(to(name)):>9} bytes  {to(name)}")


if __name__ == "__main__":
    main()
