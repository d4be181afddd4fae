"""`chassis tokenizer` against transformers: a vocabulary that chassis trains loads there; ids, their bytes and texts are
the same, also of the tokenizers of released models that tests/interop/setup downloads.

CHASSIS_TOKENIZERS may name another folder of model directories. What tokenizer.json says is compared; some classes of
transformers build another pipeline beside it."""

import os
import pathlib
import random
import shutil

from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from suite import Suite

NUM_TEXTS = 10000
WORDS = [
    "the quick brown fox", "Don't", "we'll", "naïve café Straße", "x**2 != y;", "\t\t", "   ", " ", "12345", "3.14", "٣٤٥", "½①",
    "你好，世界", "日本語テキスト", "한국어 문장", "Привет, мир", "Καλημέρα", "السَّلامُ عليكم", "שלום", "नमस्ते दुनिया", "สวัสดี", "မြန်မာ",
    "😀👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "𝔘𝔫𝔦", "e\u0301", "\u212b\ufb01", "\u200b\u00a0\ufeff", "\x01\x7f", "<|im_start|>", "<|im_end|>", "<s>", "</s>",
    "<|endoftext|>", "<think>", "<|extra|>", "<pad>", "<0x41>", "▁", "Ġ", "https://a.b/c?d=e#f", "�",
]


def texts(seed):
    draw = random.Random(seed)
    for _ in range(NUM_TEXTS):
        parts = [draw.choice(WORDS) + draw.choice(["", " ", "  "]) for _ in range(draw.randint(1, 12))]
        if draw.random() < 0.3:
            parts.append("".join(chr(draw.choice([draw.randrange(0x20, 0x7f), draw.randrange(0xa1, 0x2000),
                                                  draw.randrange(0x3000, 0xd800), draw.randrange(0x1f300, 0x1fb00)]))
                                 for _ in range(8)))
        # The commands read and write lines.
        yield "".join(parts).replace("\u2028", "").replace("\u2029", "")


def lines(suite, *arguments):
    return suite.run("tokenizer", *arguments).decode().split("\n")[:-1]


def in_bytes(text, offsets):
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode()))
    return [f"{starts[begin]}-{starts[end]}" for begin, end in offsets]


def compare(suite, name, folder, hf):
    inputs = list(texts(seed=len(name)))
    file = suite.folder / f"{name}.txt"
    file.write_text("".join(text + "\n" for text in inputs))
    for plain in (False, True):
        expected = [hf(text, add_special_tokens=False, split_special_tokens=plain).input_ids for text in inputs]
        ours = [[int(id) for id in line.split()] for line in lines(suite, "encode", folder, file, *["--plain"][:plain])]
        different = sum(a != b for a, b in zip(ours, expected))
        suite.check(f"{name}: ids{' of plain text' if plain else ''}", len(ours) == len(inputs) and different == 0,
                    f"{different} of {len(inputs)} differ")

    backend = hf.backend_tokenizer
    backend.post_processor = processors.Sequence([])  # it would trim white space off offsets
    backend.encode_special_tokens = False  # the calls above have set it
    expected = [in_bytes(text, backend.encode(text, add_special_tokens=False).offsets) for text in inputs]
    ours = [[word.split(":")[1] for word in line.split()] for line in lines(suite, "encode", folder, file, "--offsets")]
    different = sum(a != b for a, b in zip(ours, expected))
    suite.check(f"{name}: bytes of ids", len(ours) == len(inputs) and different == 0,
                f"{different} of {len(inputs)} differ")

    ids = [hf(text, add_special_tokens=False).input_ids for text in inputs]
    file = suite.folder / f"{name}.ids"
    file.write_text("".join(" ".join(map(str, row)) + "\n" for row in ids))
    for special in (False, True):
        expected = [hf.decode(row, skip_special_tokens=not special, clean_up_tokenization_spaces=False) for row in ids]
        ours = lines(suite, "decode", folder, file, *["--special"][:special])
        different = sum(a != b for a, b in zip(ours, expected))
        suite.check(f"{name}: texts{' with special tokens' if special else ''}", len(ours) == len(ids) and different == 0,
                    f"{different} of {len(ids)} differ")


suite = Suite(__doc__)
golden = pathlib.Path(__file__).parent.parent.parent / "plugins/tokenizer/hf/core/tests/golden"
for name in ("byte_level", "metaspace"):
    compare(suite, name, golden / name, PreTrainedTokenizerFast.from_pretrained(golden / name))

real = pathlib.Path(os.environ.get("CHASSIS_TOKENIZERS", golden.parents[5] / ".deps/interop-tokenizers"))
for file in sorted(real.rglob("tokenizer.json")):
    name = "_".join(file.parent.relative_to(real).parts)
    compare(suite, name, file.parent, PreTrainedTokenizerFast.from_pretrained(file.parent))

corpus = suite.folder / "corpus.txt"
corpus.write_text("\n".join(texts(seed=1)))
trained = suite.folder / "trained"
shutil.rmtree(trained, ignore_errors=True)
suite.run("tokenizer", "train", corpus, "--vocab", "1000", "--out", trained)
hf = AutoTokenizer.from_pretrained(trained)
suite.check("trained: size", len(hf) == 1000, f"{len(hf)} ids")
compare(suite, "trained", trained, hf)
chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "?"},
        {"role": "assistant", "content": "Yes."}]
masked = hf.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
answers = hf.decode([id for id, ours in zip(masked["input_ids"], masked["assistant_masks"]) if ours])
suite.check("trained: the chat template masks answers", answers == "Hello<|im_end|>Yes.<|im_end|>", repr(answers))
suite.close()
