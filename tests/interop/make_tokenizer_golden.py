"""Writes plugins/tokenizer/hf/core/tests/golden: two tiny tokenizers, and what transformers makes of texts and
conversations with them, so that the tests of the crate compare with transformers without Python. Run it by hand:
make_tokenizer_golden.py FOLDER."""

import datetime
import json
import pathlib
import re
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = 1735646400  # 2024-12-31 12:00:00 UTC

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps, the fox runs; the end.",
    "Sphinx of black quartz, judge my vow! Don't they'll we've I'm it's 1234567890 2024-12-31",
    "Größe, façade, naïve, Ångström, Καλημέρα κόσμε, Привет мир, שלום, مرحبا, नमस्ते, สวัสดี",
    "你好，世界。日本語のテキスト。한국어 문장. 😀👍🏽👨‍👩‍👧",
    "def f(x):\n    return x ** 2\n\n\n\tif a != b:  # why\n",
] * 3

TEXTS = [
    "", " ", "\n", "Hello, world!", "  two  spaces  ", "The quick brown fox", "don't DON'T we'll", "12345 + 67.89",
    "e\u0301 \u212b \ufb01", "😀 👨‍👩‍👧‍👦 🇩🇪", "日本語テキスト", "Привет, мир!\r\n\r\n", "a\u00a0b\u200bc\ufeff", "\x00\x07\x7f\x85\u2028",
    "tabs\t\tand\n\n\nlines\n ", "नमस्ते दुनिया", "<|im_start|>user\nHi<|im_end|>", "<s>x</s><pad>", "a <think> b</think>",
    "<|extra|>!", "Ġ ▁ <0x41>", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010fffd", "x" * 40, "e\u0301\u0302\u0303", "مرحبا ﷺ",
]


def byte_level():
    """The pipeline of Qwen; one added token is known to tokenizer_config.json only, and templates have names."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
             r"|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(words), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    extra = {"content": "<|extra|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
             "special": True}
    config = {
        "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": True, "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {**{str(i): token.__getstate__() for i, token in tokenizer.get_added_tokens_decoder().items()},
                                 str(tokenizer.get_vocab_size()): extra},
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"},
                          {"name": "tool_use", "template": "{{ tools | length }} tools"}],
    }
    return tokenizer, {"tokenizer_config.json": config}


def metaspace():
    """The pipeline of Llama 2, with the older files for special and added tokens."""
    spm = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted(set(("".join(CORPUS[:3]) + "H").replace(" ", "▁")) - {"ß", "π"})
    vocab = {token: i for i, token in enumerate(spm + letters)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "q"), ("o", "x"), ("▁", "▁"), ("l", "l"), ("▁", "H"), ("e", "ll")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    files = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True},
        "special_tokens_map.json": {"bos_token": {"content": "<s>", "lstrip": False, "normalized": True, "rstrip": False,
                                                  "single_word": False},
                                    "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        "added_tokens.json": {"<pad>": tokenizer.get_vocab_size()},
    }
    return tokenizer, files


def in_bytes(text, offsets):
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    return [[starts[begin], starts[end]] for begin, end in offsets]


def tokenizer_golden(folder):
    hf = PreTrainedTokenizerFast.from_pretrained(folder)
    backend = hf.backend_tokenizer
    adds_bos = hf.bos_token_id is not None and hf("x").input_ids[0] == hf.bos_token_id
    backend.post_processor = processors.Sequence([])  # it would trim white space off offsets
    encodings, decodings = [], []
    for text in TEXTS:
        special = backend.encode(text)
        backend.encode_special_tokens = True
        plain = backend.encode(text)
        backend.encode_special_tokens = False
        encodings.append({"text": text, "ids": special.ids, "offsets": in_bytes(text, special.offsets), "plain": plain.ids})
        for ids in special.ids, special.ids[len(special.ids) // 2:]:
            decodings.append({"ids": ids, "text": hf.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
                              "kept": hf.decode(ids, clean_up_tokenization_spaces=False)})
    ids = {name: getattr(hf, name + "_token_id") for name in ("bos", "eos", "pad", "unk")}
    info = {**{name + "_id": -1 if i is None else i for name, i in ids.items()}, "adds_bos": adds_bos, "vocab_size": len(hf)}
    return {"info": info, "encodings": encodings, "decodings": decodings}


# --- chat templates -------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "weather", "description": "The <b>weather</b> & \"more\" in Köln",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1.0}},
                       "required": ["city"]}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln \"am\" Rhein", "days": 3}}}

CONVERSATIONS = {
    "plain": {"messages": [{"role": "user", "content": "Hi <there> & you?"}, {"role": "assistant", "content": "Hello, wörld! 你好"}]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"},
                            {"role": "assistant", "content": "Me,\nI."}]},
    "turns": {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "one"},
                           {"role": "user", "content": "2"}, {"role": "assistant", "content": " two \n"}]},
    "prompt": {"messages": [{"role": "user", "content": "U"}], "generation_prompt": True},
    "tools": {"messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                           {"role": "tool", "name": "weather", "content": "{\"rain\": true}"},
                           {"role": "assistant", "content": "Yes."}], "tools": [TOOL]},
    "reasoning": {"messages": [{"role": "user", "content": "Why?"},
                               {"role": "assistant", "reasoning": "Let me\nthink.", "content": "Because."},
                               {"role": "user", "content": "So?"},
                               {"role": "assistant", "content": "<think>\nAgain.\n</think>\n\nSo."}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": " here"}]},
                           {"role": "assistant", "content": [{"type": "text", "text": "I see"}]}]},
    "variables": {"messages": [{"role": "user", "content": "U"}], "generation_prompt": True,
                  "variables": {"enable_thinking": False, "documents": [{"title": "T", "text": "D"}]}},
}
SPECIALS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def templates(folder):
    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)

    chat_template_utils.datetime = Now
    golden = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        tracked = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
        for name, conversation in CONVERSATIONS.items():
            messages = [{k: v for k, v in message.items() if v is not None} for message in conversation["messages"]]
            case = {"template": path.name, "conversation": name}
            try:
                texts, spans = chat_template_utils.render_jinja_template(
                    [messages], tools=conversation.get("tools"), chat_template=source, return_assistant_tokens_mask=tracked,
                    add_generation_prompt=conversation.get("generation_prompt", False), **SPECIALS,
                    **conversation.get("variables", {}))
                case["text"] = texts[0]
                if tracked:
                    case["generation"] = in_bytes(texts[0], [span for span in spans[0] if span[0] < span[1]])
            except Exception:
                case["refused"] = True
            golden.append(case)
    return {"now": NOW, "conversations": CONVERSATIONS, "cases": golden}


def main():
    folder = pathlib.Path(sys.argv[1])
    for make in byte_level, metaspace:
        directory = folder / make.__name__
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer, files = make()
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
        for name, content in files.items():
            (directory / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        golden = tokenizer_golden(directory)
        (folder / f"{make.__name__}.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
    (folder / "templates.json").write_text(json.dumps(templates(folder / "templates"), ensure_ascii=False, indent=1) + "\n")


main()
