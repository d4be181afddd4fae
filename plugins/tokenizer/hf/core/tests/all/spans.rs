//! Spans of templates without generation blocks: exactly the leaves, or a refusal.
use crate::{golden, open};
use chassis_hf_core::{
    Chat, ErrorKind, Rendered, Result, LEAF_CONTENT, LEAF_GENERATION, LEAF_REASONING, LEAF_TOOL_CALLS,
};

fn render(template: &str, messages: &str) -> Result<Rendered> {
    let tokenizer = open("byte_level");
    let plain = tokenizer.render(&Chat { messages_json: messages, template_text: template, ..Default::default() })?;
    let chat = Chat { messages_json: messages, template_text: template, spans: true, ..Default::default() };
    let rendered = tokenizer.render(&chat)?;
    assert_eq!(rendered.text, plain.text);
    let mut last = 0;
    for span in &rendered.spans {
        assert!(last <= span.begin && span.begin < span.end, "{:?}", rendered.spans);
        last = span.end;
    }
    Ok(rendered)
}

fn spans(template: &str, messages: &str) -> Vec<(u32, u64, String)> {
    let rendered = render(template, messages).unwrap();
    let text = |begin: u64, end: u64| rendered.text[begin as usize..end as usize].to_owned();
    rendered.spans.iter().map(|span| (span.leaf, span.message, text(span.begin, span.end))).collect()
}

fn file(name: &str) -> String {
    std::fs::read_to_string(golden("templates").join(name)).unwrap()
}

fn span(leaf: u32, message: u64, text: &str) -> (u32, u64, String) {
    (leaf, message, text.to_owned())
}

const TURNS: &str = r#"[{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"},
                        {"role": "user", "content": "y"}, {"role": "assistant", "content": " zwei\nÄ "}]"#;
const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

#[test]
fn contents_are_found_where_they_stand() {
    assert_eq!(spans(CHATML, TURNS), [span(LEAF_CONTENT, 1, "x"), span(LEAF_CONTENT, 3, " zwei\nÄ ")]);
}

#[test]
fn a_template_that_trims_has_spans_of_what_is_left() {
    let trimmed = [span(LEAF_CONTENT, 1, "x"), span(LEAF_CONTENT, 3, "zwei\nÄ")];
    assert_eq!(spans(&CHATML.replace("m.content", "m.content | trim"), TURNS), trimmed);
    assert_eq!(spans(&file("headers.jinja"), TURNS), trimmed);
}

#[test]
fn a_template_that_rewrites_a_leaf_is_refused() {
    for (change, message) in [
        ("m.content | upper", 1),
        ("m.content | replace('z', 's')", 3),
        ("m.content[1:]", 1),
        ("m.content ~ m.content", 1),
        ("m.content | length", 1),
        ("m.content.split('\\n')[-1]", 3),
        ("'one' if m.content == 'x' else 'two'", 1),
        ("m.content | tojson", 3),
    ] {
        let error = render(&CHATML.replace("m.content", change), TURNS).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{change}: {error}");
        assert!(error.message.contains("data.template = \"chatml\""), "{change}: {error}");
        assert!(error.message.contains(&format!("content of message {message}")), "{change}: {error}");
    }
}

#[test]
fn what_a_template_leaves_out_has_no_span() {
    let only_last = "{% for m in messages %}{{ m.content if loop.last }}{% endfor %}";
    assert_eq!(spans(only_last, TURNS), [span(LEAF_CONTENT, 3, " zwei\nÄ ")]);
    assert_eq!(spans("nothing", TURNS), []);
    let empty = r#"[{"role": "user", "content": "x"}, {"role": "assistant", "content": " \n"}]"#;
    assert_eq!(spans(CHATML, empty), []);
}

#[test]
fn reasoning_and_content_have_their_own_spans() {
    let messages = r#"[{"role": "user", "content": "?"},
        {"role": "assistant", "reasoning_content": "old", "content": "first"}, {"role": "user", "content": "?"},
        {"role": "assistant", "thinking": "new\nthoughts", "content": "second"}]"#;
    let expected = [
        span(LEAF_CONTENT, 1, "first"), // its reasoning is left out of earlier turns
        span(LEAF_REASONING, 3, "new\nthoughts"),
        span(LEAF_CONTENT, 3, "second"),
    ];
    assert_eq!(spans(&file("thinking.jinja"), messages), expected);
}

#[test]
fn think_tags_in_a_content_are_followed_through_templates_that_split_there() {
    let messages = r#"[{"role": "user", "content": "?"},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nfirst"}, {"role": "user", "content": "?"},
        {"role": "assistant", "content": "<think>\nnew\n</think>\n\nsecond"}]"#;
    let whole = "<think>\nnew\n</think>\n\nsecond";
    assert_eq!(
        spans(&file("thinking.jinja"), messages),
        [span(LEAF_CONTENT, 1, "first"), span(LEAF_CONTENT, 3, whole)]
    );
    let expected = [span(LEAF_CONTENT, 1, "<think>\nold\n</think>\n\nfirst"), span(LEAF_CONTENT, 3, whole)];
    assert_eq!(spans(CHATML, messages), expected);
}

#[test]
fn parts_of_a_content_have_spans() {
    let messages = r#"[{"role": "user", "content": "?"},
        {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]"#;
    let template =
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
                    [{{ part.text }}]{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(spans(template, messages), [span(LEAF_CONTENT, 1, "one"), span(LEAF_CONTENT, 1, "two")]);
}

const CALLS: &str = r#"[{"role": "user", "content": "?"},
    {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"a": "b"}}}]},
    {"role": "tool", "content": "f"}, {"role": "assistant", "content": "Done."}]"#;

#[test]
fn tool_calls_have_spans_with_their_markup() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}\n</tool_call>";
    let expected = [span(LEAF_TOOL_CALLS, 1, call), span(LEAF_CONTENT, 3, "Done.")];
    assert_eq!(spans(&file("thinking.jinja"), CALLS), expected);
    let call = r#"{"name": "f", "parameters": {"a": "b"}}"#;
    assert_eq!(spans(&file("headers.jinja"), CALLS), [span(LEAF_TOOL_CALLS, 1, call), span(LEAF_CONTENT, 3, "Done.")]);
}

/// This template refuses the conversation with a text instead of the calls, since roles would not alternate.
#[test]
fn tool_calls_are_found_in_templates_that_insist_on_the_order_of_roles() {
    let call = r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": "b"}, "id": "abcdefghi"}]"#;
    let expected = [span(LEAF_TOOL_CALLS, 1, call), span(LEAF_CONTENT, 3, "Done.")];
    assert_eq!(spans(&file("alternating.jinja"), CALLS), expected);
}

#[test]
fn calls_after_a_content_begin_where_it_ends() {
    let messages = r#"[{"role": "user", "content": "?"}, {"role": "assistant", "content": "Let me see.", "tool_calls":
        [{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "f", "arguments": {"n": 1}}}]},
        {"role": "user", "content": "ok"}]"#;
    let calls = "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n\
                 <tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
    let expected = [span(LEAF_CONTENT, 1, "Let me see."), span(LEAF_TOOL_CALLS, 1, calls)];
    assert_eq!(spans(&file("thinking.jinja"), messages), expected);
}

#[test]
fn blocks_of_generation_belong_to_their_messages() {
    let got = spans(&file("tags_between.jinja"), TURNS);
    let expected = [
        span(LEAF_GENERATION, 1, "x\n"),
        span(LEAF_GENERATION, 3, " zwei\nÄ \n"),
        span(LEAF_GENERATION, 3, "<|im_end|>"), // a second block of the last message
    ];
    assert_eq!(got, expected);
    let changed = "{% for m in messages %}{% set t %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}\
                   {{ t | trim }}{% endfor %}";
    assert_eq!(render(changed, TURNS).unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[test]
fn private_characters_of_a_conversation_are_no_marks() {
    let messages = "[{\"role\": \"user\", \"content\": \"\u{f0000}\u{f0001}\"},\
                     {\"role\": \"assistant\", \"content\": \"a\u{f0001}\"}]";
    assert_eq!(spans(CHATML, messages), [span(LEAF_CONTENT, 1, "a\u{f0001}")]);
    let both = messages.replace("a\u{f0001}", "a\u{100000}");
    assert_eq!(render(CHATML, &both).unwrap_err().kind, ErrorKind::FailedPrecondition);
}
