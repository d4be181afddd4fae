//! Compares rendered conversations with transformers, and tests what templates may not do.
use crate::{golden, golden_json, open, Folder};
use chassis_hf_core::{Chat, ErrorKind, Tokenizer, LEAF_GENERATION};
use serde_json::{json, Value};

fn json_of(value: &Value) -> String {
    if value.is_null() {
        String::new()
    } else {
        value.to_string()
    }
}

#[test]
fn integers_of_any_number_of_digits_keep_them() {
    let (wide, wider) = ("-123456789012345678901234567890", "9".repeat(60));
    let arguments = format!(r#"{{"a": {wide}, "b": [{wider}, 18446744073709551615, 1.5, "7"]}}"#);
    let messages = format!(
        r#"[{{"role": "user", "content": "\"12345678901234567890123\""}}, {{"role": "assistant", "content": "",
            "tool_calls": [{{"type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}]}}]"#
    );
    let template = "{{ messages[0].content }} {% set a = messages[1].tool_calls[0].function.arguments %}\
                    {{ a|tojson }} {{ a.b[0] }} {{ a.a }} {{ a.b }}";
    let chat = Chat { messages_json: &messages, template_text: template, ..Chat::default() };
    let text = open("byte_level").render(&chat).unwrap().text;
    let list = format!("[{wider}, 18446744073709551615, 1.5, '7']");
    assert_eq!(text, format!("\"12345678901234567890123\" {arguments} {wider} {wide} {list}"));
}

#[test]
fn texts_and_generation_blocks_equal_those_of_transformers() {
    let tokenizer = open("byte_level");
    let golden_cases = golden_json("templates.json");
    for case in golden_cases["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let conversation = &golden_cases["conversations"][case["conversation"].as_str().unwrap()];
        let of = |key: &str| json_of(&conversation[key]);
        let (messages_json, tools_json, variables_json) = (of("messages"), of("tools"), of("variables"));
        let chat = Chat {
            messages_json: &messages_json,
            tools_json: &tools_json,
            variables_json: &variables_json,
            template_text: &std::fs::read_to_string(golden("templates").join(name)).unwrap(),
            unix_time_s: golden_cases["now"].as_i64().unwrap(),
            generation_prompt: conversation["generation_prompt"] == true,
            spans: case.get("generation").is_some(),
        };
        let what = format!("{name} {}", case["conversation"]);
        match tokenizer.render(&chat) {
            Ok(rendered) => {
                assert_eq!(case["text"], rendered.text.as_str(), "{what}");
                let spans: Vec<Value> = rendered.spans.iter().map(|span| json!([span.begin, span.end])).collect();
                assert_eq!(case.get("generation").cloned().unwrap_or_else(|| json!([])), json!(spans), "{what}");
                assert!(rendered.spans.iter().all(|span| span.leaf == LEAF_GENERATION), "{what}");
            }
            Err(error) => assert_eq!(case["refused"], true, "{what}: {error}"),
        }
    }
}

fn render(template: &str, messages: &str) -> chassis_hf_core::Result<String> {
    let tokenizer = open("metaspace");
    let chat = Chat { messages_json: messages, template_text: template, ..Default::default() };
    tokenizer.render(&chat).map(|rendered| rendered.text)
}

const HELLO: &str = r#"[{"role": "user", "content": "Hello"}]"#;

#[test]
fn special_tokens_are_variables() {
    let text = render("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ cls_token is defined }}", HELLO).unwrap();
    assert_eq!(text, "<s>|</s>|<pad>|False");
}

#[test]
fn line_ends_of_templates_are_normalised() {
    assert_eq!(render("a\r\n{% if true %}\r\nb\rc{% endif %}\r\n", HELLO).unwrap(), "a\nb\nc");
}

#[test]
fn a_template_refuses_in_its_own_words() {
    let error = render("\n\n{{ raise_exception('Only one ' ~ messages[0].role) }}", HELLO).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert_eq!(error.message, "the given template:3: Only one user");
}

#[test]
fn empty_texts_are_found_as_in_python() {
    let of = |expression: &str| render(&format!("{{{{ {expression} }}}}"), HELLO).map_err(|e| e.message);
    for (expression, expected) in [
        ("'abc'.count('')", "4"),
        ("''.count('')", "1"),
        ("'äbab'.count('b')", "2"),
        ("'äbab'.count('b', 2)", "1"),
        ("'äbab'.count('b', 0, 3)", "1"),
        ("'äbab'.count('', 3, 1)", "0"),
        ("'abc'.find('')", "0"),
        ("'ab'.replace('', '-')", "-a-b-"),
    ] {
        assert_eq!(of(expression).unwrap(), expected, "{expression}");
    }
    for expression in ["'abc'.partition('')", "'abc'.rpartition('')", "'abc'.split('')"] {
        assert!(of(expression).unwrap_err().contains("empty separator"), "{expression}");
    }
}

#[test]
fn attributes_of_undefined_values_are_an_error_as_in_transformers() {
    assert_eq!(render("[{{ messages[0].nothing }}]", HELLO).unwrap(), "[]");
    let error = render("\n{{ messages[0].nothing.more }}", HELLO).unwrap_err();
    assert!(error.message.starts_with("the given template:2: "), "{error}");
}

#[test]
fn a_template_that_does_not_parse_names_its_line() {
    let error = render("{% for m in messages %}\n{{ m.role }\n{% endfor %}", HELLO).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(error.message.starts_with("the given template:2: "), "{error}");
}

#[test]
fn a_template_that_loops_is_stopped() {
    let loops = "{% macro f(n) %}{% for i in range(100000) %}{{ '' }}{% endfor %}{% endmacro %}\
                 {% for i in range(100000) %}{{ f(i) }}{% endfor %}";
    let error = render(loops, HELLO).unwrap_err();
    assert!(error.message.contains("does it loop?"), "{error}");
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(render(recursive, HELLO).is_err());
}

#[test]
fn arguments_of_tool_calls_keep_their_order_and_numbers() {
    let arguments = r#"{"z": 1, "a": 1.0, "m": 12345678901234567890}"#;
    let messages =
        format!(r#"[{{"role": "assistant", "tool_calls": [{{"function": {{"arguments": {arguments}}}}}]}}]"#);
    let text = render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", &messages).unwrap();
    assert_eq!(text, arguments);
}

#[test]
fn conversations_that_are_none_are_refused() {
    for (messages, word) in
        [("", "JSON"), ("{}", "array"), ("[]", "at least one"), ("[1]", "message 0"), ("[{]", "JSON")]
    {
        let error = render("x", messages).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.message.contains(word), "{error}");
    }
    let tokenizer = open("metaspace");
    let chat = Chat { messages_json: HELLO, template_text: "x", ..Default::default() };
    assert!(tokenizer.render(&Chat { variables_json: r#"{"messages": []}"#, ..chat }).is_err());
    assert!(tokenizer.render(&Chat { tools_json: "{}", ..chat }).is_err());
}

#[test]
fn a_directory_without_a_template_names_the_slot_templates() {
    let error = render("", HELLO).unwrap_err();
    assert!(error.message.contains("data.template = \"chatml\""), "{error}");
}

#[test]
fn named_templates_are_chosen_by_tools() {
    let tokenizer = open("byte_level");
    assert_eq!(tokenizer.info().chat_template, "{{ messages[0].content }}");
    let chat = Chat { messages_json: HELLO, ..Default::default() };
    assert_eq!(tokenizer.render(&chat).unwrap().text, "Hello");
    assert_eq!(tokenizer.render(&Chat { tools_json: "[{}, {}]", ..chat }).unwrap().text, "2 tools");
}

#[test]
fn template_files_come_before_the_configuration() {
    let folder = Folder::of_golden("templates", "byte_level");
    let chat = Chat { messages_json: HELLO, ..Default::default() };
    let text = |tools_json| {
        let tokenizer = Tokenizer::open(&folder.0).unwrap();
        tokenizer.render(&Chat { tools_json, ..chat }).unwrap().text
    };
    folder.write("chat_template.json", br#"{"chat_template": "of json"}"#);
    assert_eq!(text(""), "Hello");
    folder.write("chat_template.jinja", b"of file");
    assert_eq!((text(""), text("[]")), ("of file".to_owned(), "of file".to_owned()));
    folder.write("additional_chat_templates/tool_use.jinja", b"with tools");
    assert_eq!((text(""), text("[]")), ("of file".to_owned(), "with tools".to_owned()));

    folder.write("chat_template.jinja", b"\n{{ nothing.more }}");
    let error = Tokenizer::open(&folder.0).unwrap().render(&chat).unwrap_err();
    assert!(error.message.contains("chat_template.jinja:2: "), "{error}");
}

#[test]
fn chat_template_json_is_read_where_there_is_no_other() {
    let folder = Folder::of_golden("template-json", "metaspace");
    folder.write("chat_template.json", br#"{"chat_template": "of json"}"#);
    assert_eq!(Tokenizer::open(&folder.0).unwrap().info().chat_template, "of json");
}
