"""Golden conversations: what transformers' apply_chat_template writes and how tokenizers encodes it.

    python generate.py            (needs transformers, tokenizers; writes cases.json and *.tokenizer.json)

Each case: a template as it ships with a model family, a conversation, the text (null: the template raises),
the ids, and the mask that follows from character offsets: a token trains when it overlaps the words of an
assistant's turn or the text that ends the turn.
"""
import json
import os

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
          "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
         "You are a helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
         "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
         "{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
          "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
          "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
          "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
          "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
          "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
          "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
          "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_V1 = ("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
              "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
              "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
              "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
              "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
# none of ours: a date, another end of turn, a chatml without its last newline, white space that is lost
OTHERS = {
    "date": "{{ strftime_now('%d %b %Y') }}" + CHATML,
    "zephyr": ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
               "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
               "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
               "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"),
    "chatml-without-newline": CHATML.replace("'<|im_end|>' + '\n'", "'<|im_end|>'"),
    "chatml-trimmed": CHATML.replace("message['content']", "message['content'] | trim"),
}
# white space rules of tags, comments, loops and names, all of which come out as chatml
SAME_AS_CHATML = [
    "{# a comment #}\n{% for m in messages %}\n    {% if m.role is defined %}\n{{ '<|im_start|>' ~ m.role }}\n"
    "{{ m.content ~ '<|im_end|>' }}\n\n    {%- endif %}\n{{ '\\n' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n{{ '<|im_start|>assistant' }}\n{% endif %}",
    "{%- set ns = namespace(text='') -%}{%- for message in messages -%}{%- set ns.text = ns.text + '<|im_start|>' + "
    "message.role + '\\n' + message.content + '<|im_end|>\\n' -%}{%- endfor -%}{{- ns.text -}}"
    "{{ '<|im_start|>assistant\\n' if add_generation_prompt else '' }}",
]

TEMPLATES = {"chatml": CHATML, "chatml-qwen2": QWEN2, "chatml-qwen2.5": QWEN25, "llama2": LLAMA2, "llama3": LLAMA3,
             "mistral": MISTRAL, "mistral-v1": MISTRAL_V1}
END_OF_TURN = {"chatml": "<|im_end|>", "chatml-qwen2": "<|im_end|>", "chatml-qwen2.5": "<|im_end|>", "llama2": " </s>",
               "llama3": "<|eot_id|>", "mistral": "</s>", "mistral-v1": "</s>"}


def turn(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [turn("user", "Who wrote it?"), turn("assistant", "Nobody knows.")],
    [turn("system", "Answer in one word."), turn("user", "The capital of France?"), turn("assistant", "Paris")],
    [turn("user", "Bonjour, ça va ?"), turn("assistant", "Très bien — merci!"), turn("user", "数字 12345 🦙"),
     turn("assistant", "One.\n\nTwo:\n- three\n    four()")],
    [turn("system", "Sys."), turn("user", "AA?"), turn("assistant", "BB."), turn("user", "CC?"), turn("assistant", "DD.")],
    [turn("user", "One?"), turn("assistant", "Two."), turn("user", "Three?")],
    [turn("user", "  spaces around \n"), turn("assistant", "\tand here ")],
    [turn("user", "Two"), turn("user", "questions"), turn("assistant", "one answer")],
    [turn("user", "call"), turn("assistant", "f(1)"), turn("tool", "2"), turn("assistant", "It is 2.")],
]

TEXT = open(__file__, encoding="utf-8").read().split("\n") * 2 + [
    "the quick brown fox jumps over the lazy dog, and nobody knows who wrote it.", "You are a helpful assistant.",
    "One. Two: three four() merci très bien ça va", "user assistant system tool"] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>"]


def byte_level():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, show_progress=False,
                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def sentence_piece():
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    bytes_ = ["<0x%02X>" % b for b in range(256)]
    t.train_from_iterator([w for line in TEXT for w in line.split()],
                          trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL + bytes_, show_progress=False))
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] in SPECIAL]
    return Tokenizer.from_str(json.dumps(j))


def masks(text, offsets, conversation, end_of_turn, trim):
    spans, at = [], 0
    for t in conversation:
        content = t["content"].strip() if trim else t["content"]
        at = text.index(content, at) + (0 if t["role"] == "assistant" else len(content))
        if t["role"] == "assistant":
            end = at + len(content)
            assert text[end:].startswith(end_of_turn), (text[end:], end_of_turn)
            spans.append((at, end + len(end_of_turn)))
            at = end + len(end_of_turn)
    return [int(any(b > s and a < e for s, e in spans)) for a, b in offsets]


def main():
    tokenizers = {"bytes": byte_level(), "pieces": sentence_piece()}
    cases, foreign = [], []
    for kind, t in tokenizers.items():
        t.save(os.path.join(HERE, kind + ".tokenizer.json"), pretty=False)
    for name, template in TEMPLATES.items():
        for kind, t in tokenizers.items():
            if (kind == "pieces") != (name in ("llama2", "mistral", "mistral-v1")):
                continue
            bos, eos = ("<|begin_of_text|>", "<|eot_id|>") if name == "llama3" else ("<s>", "</s>")
            hf = PreTrainedTokenizerFast(tokenizer_object=t, bos_token=bos, eos_token=eos)
            for conversation in CONVERSATIONS:
                generation = conversation[-1]["role"] == "user"
                case = {"template": name, "tokenizer": kind, "bos": bos, "eos": eos, "turns": conversation,
                        "generation": generation, "text": None}
                try:
                    text = hf.apply_chat_template(conversation, chat_template=template, tokenize=False,
                                                  add_generation_prompt=generation)
                    encoded = t.encode(text, add_special_tokens=False)
                    case.update(text=text, ids=encoded.ids,
                                mask=masks(text, encoded.offsets, conversation, END_OF_TURN[name],
                                           name in ("llama2", "llama3")))
                except Exception as e:
                    assert "alternate" in str(e) or "supported" in str(e), e
                cases.append(case)
    for template in SAME_AS_CHATML:
        for generation in (False, True):
            text = [hf.apply_chat_template(CONVERSATIONS[3], chat_template=t, tokenize=False,
                                           add_generation_prompt=generation) for t in (template, CHATML)]
            assert text[0] == text[1], text
    for name, template in OTHERS.items():
        foreign.append({"name": name, "template": template})
    json.dump({"templates": TEMPLATES, "same_as_chatml": SAME_AS_CHATML, "foreign": foreign, "cases": cases},
              open(os.path.join(HERE, "cases.json"), "w"), indent=0, ensure_ascii=False)
    print(len(cases), "cases")


main()
