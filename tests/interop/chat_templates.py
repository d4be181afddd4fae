"""Chat templates of TRL, rendered by the core of plugin hf and by transformers: equal texts, and equal spans where a
template has `{% generation %}` blocks. Each template renders a dozen conversations.

Those of the tokenizers that tests/interop/setup downloads are compared too; CHASSIS_TOKENIZERS may name another folder
of model directories."""

import collections
import datetime
import json
import os
import pathlib
import re
import subprocess

import trl
from transformers.utils import chat_template_utils

from suite import Suite

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOW = 1735646400
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3.0, "c": None}}}
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "Adds <b>two</b> & \"more\" für alle", "parameters": {
        "type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "number", "description": "The first's value"}, "b": {"type": "number", "enum": [1, 2.5]}}}}}]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "You are a pirate."}
RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "add", "content": "{\"sum\": 5}"}
CONVERSATIONS = {
    "plain": {"messages": [user("Hi <there> & \"you\"?"), assistant("Hello, wörld! 你好")]},
    "system": {"messages": [SYSTEM, user("Who?"), assistant("Arr, I'm a\npirate.")]},
    "turns": {"messages": [user("1"), assistant("one"), user("2"), assistant("two\n\nlines"), user("3"),
                           assistant("three")]},
    "prompt": {"messages": [SYSTEM, user("U")], "generation_prompt": True},
    "tools": {"messages": [user("2+3?"), assistant("", tool_calls=[CALL]), RESULT, assistant("Five.")], "tools": TOOLS},
    "more tools": {"messages": [user("2+3?"), assistant("Let me see.", tool_calls=[CALL, CALL | {"id": "abcdefgh2"}]),
                                RESULT, RESULT, assistant("Five."), user("Thanks"), assistant("Welcome")],
                   "tools": TOOLS},
    "call only": {"messages": [user("2+3"), assistant(None, tool_calls=[CALL])], "tools": TOOLS},
    "reasoning": {"messages": [user("Why?"), assistant("Because.", reasoning_content="Let me think\nhard."),
                               user("And?"), assistant("So.", reasoning_content="Again.")]},
    "thoughts": {"messages": [user("Why?"), assistant("<think>\nHm\n</think>\n\nBecause."), user("And?"),
                              assistant("So.")]},
    "parts": {"messages": [user([{"type": "text", "text": "Look"}, {"type": "text", "text": " here"}]),
                           assistant([{"type": "text", "text": "I see"}])]},
    "white space": {"messages": [user(" U\n"), assistant("\n  indented \n")]},
    "variable": {"messages": [user("U")], "generation_prompt": True, "variables": {"enable_thinking": False}},
}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


def answer_program(build):
    """The example `answer` of the crate, built beside the plugin."""
    target, vendor = build / "plugins/tokenizer/hf/cargo-hf", ROOT / ".deps/cargo-vendor"
    command = ["cargo", "build", "--quiet", "--release", "--example", "answer", "--package", "chassis-hf-core",
               "--locked", "--offline", "--manifest-path", ROOT / "plugins/tokenizer/hf/Cargo.toml",
               "--config", 'source.crates-io.replace-with="vendor"', "--config", f'source.vendor.directory="{vendor}"']
    subprocess.run(command, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    return target / "release/examples/answer"


def render_hf(template, conversation, specials, spans):
    messages = [{key: value for key, value in message.items() if value is not None}
                for message in conversation["messages"]]
    texts, generated = chat_template_utils.render_jinja_template(
        [messages], tools=conversation.get("tools"), chat_template=template, return_assistant_tokens_mask=spans,
        add_generation_prompt=conversation.get("generation_prompt", False), **specials,
        **conversation.get("variables", {}))
    return texts[0], generated[0] if generated else None


def compare(suite, answer, folder, templates):
    specials = {}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        if value is not None:
            specials[key] = value["content"] if isinstance(value, dict) else value
    cases = [(name, template, what, conversation, spans) for name, template in templates.items()
             for what, conversation in CONVERSATIONS.items() for spans in (False, True)]
    requests = [json.dumps({"render": {**conversation, "template": template, "time": NOW, "spans": spans}})
                for _, template, _, conversation, spans in cases]
    output = subprocess.run([answer, folder], input="\n".join(requests) + "\n", text=True, check=True,
                            stdout=subprocess.PIPE).stdout
    counts, wrong = collections.Counter(), []
    for (name, template, what, conversation, spans), line in zip(cases, output.split("\n")):
        ours = json.loads(line)
        generates = re.search(r"\{%-?\s*generation\s*-?%\}", template)
        if spans and not generates:
            continue
        try:
            text, generated = render_hf(template, conversation, specials, spans)
        except Exception:
            text = generated = None
        if text is None or "error" in ours:
            same, kind = text is None and "error" in ours, "refused by both"
        elif not spans:
            same, kind = ours["text"] == text, "equal texts"
        else:
            in_bytes = [(len(text[:begin].encode()), len(text[:end].encode())) for begin, end in generated
                        if end > begin]
            same, kind = [tuple(span[2:4]) for span in ours["spans"]] == in_bytes, "equal spans"
        counts[kind] += same
        if not same:
            wrong.append(f"{name}, {what}{', spans' if spans else ''}")
    suite.check(f"{folder.name}: {len(templates)} templates", not wrong, f"{dict(counts)}; wrong: {wrong}")


suite = Suite(__doc__)
chat_template_utils.datetime = FixedTime
answer = answer_program(pathlib.Path(suite.args.chassis).resolve().parent.parent)
folder = pathlib.Path(trl.__file__).parent / "chat_templates"
compare(suite, answer, ROOT / "plugins/tokenizer/hf/core/tests/golden/byte_level",
        {file.name: file.open(newline="").read() for file in sorted(folder.glob("*.jinja"))})
real = pathlib.Path(os.environ.get("CHASSIS_TOKENIZERS", ROOT / ".deps/interop-tokenizers"))
for file in sorted(real.rglob("tokenizer_config.json")):
    template = json.loads(file.read_text()).get("chat_template")
    if isinstance(template, str):
        compare(suite, answer, file.parent, {"its own": template})
suite.close()
