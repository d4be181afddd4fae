//! Hostile templates, tokenizers and texts: each ends in an error that names what to fix.
use crate::{open, Folder};
use chassis_hf_core::{Chat, Encoded, Result, Tokenizer};
use serde_json::{json, Value};

const HELLO: &str = r#"[{"role": "user", "content": "Hello"}]"#;

fn render(template: &str) -> Result<String> {
    let chat = Chat { messages_json: HELLO, template_text: template, ..Default::default() };
    open("metaspace").render(&chat).map(|rendered| rendered.text)
}

fn refused(template: &str, words: &[&str]) {
    let begin = &template[..template.len().min(100)];
    let error = render(template).expect_err(begin);
    assert!(words.iter().all(|word| error.message.contains(word)), "{begin}: {error}");
}

#[test]
fn a_namespace_cannot_contain_itself() {
    refused("\n{% set ns=namespace() %}{% set ns.a=ns %}{{ ns }}", &["the given template:2", "namespace"]);
    refused("{% set ns=namespace() %}{% set ns.a=[1, {'a': ns}] %}{{ ns }}", &["namespace"]);
    let nested = "{% set ns=namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a=[ns.a] %}{% endfor %}{{ ns.a }}";
    refused(nested, &["nested deeper than 100"]);
    let long = "{% set ns=namespace(a=[]) %}{% for i in range(300) %}{% set ns.a=ns.a+[i] %}{% endfor %}";
    assert_eq!(render(&format!("{long}{{{{ ns.a|length }}}}")).unwrap(), "300");
}

#[test]
fn long_chains_of_operators_are_refused_before_they_are_compiled() {
    for template in [
        format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ \"a\"{} }}}}", "|trim".repeat(100_000)),
        format!("{{{{ \"a\"{} }}}}", "~\"a\"".repeat(100_000)),
        format!("{{{{ messages{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ messages{} }}}}", "[0]".repeat(100_000)),
        format!("{{{{ 1{}", "+1".repeat(100_000)),
    ] {
        refused(&template, &["the given template:1", "1000 operators"]);
    }
    assert_eq!(render(&format!("{{{{ 1{} }}}}", "+1".repeat(999))).unwrap(), "1000");
}

#[test]
fn deeply_nested_blocks_are_refused() {
    let nested = |n: usize| format!("{}x{}", "{% if true %}".repeat(n), "{% endif %}".repeat(n));
    refused(&nested(20_000), &["the given template:1", "100 blocks"]);
    assert_eq!(render(&nested(100)).unwrap(), "x");
    let branches = format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(100_000));
    refused(&branches, &["200 branches"]);
    refused(&"x".repeat(5 << 20), &["a chat template of"]);
}

#[test]
fn values_do_not_grow_without_bound() {
    let grows = |step: &str| {
        let template = format!(
            "{{% set ns=namespace(s='aaaaaaaaaaaaaaaa') %}}{{% for i in range(40) %}}{step}{{% endfor %}}{{{{ ns.s }}}}"
        );
        refused(&template, &["bytes"]);
    };
    grows("{% set ns.s=ns.s+ns.s %}");
    grows("{% set ns.s=ns.s~ns.s %}");
    grows("{% set ns.s=ns.s|replace('a','aa') %}");
    grows("{% set ns.s=ns.s.replace('a','aa') %}");
    grows("{% set ns.s=[ns.s, ns.s]|join %}");
    grows("{% set ns.s=''.join([ns.s, ns.s]) %}");
    grows("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}");
    refused("{% macro f(s) %}{{ f(s+s) }}{% endmacro %}{{ f('aaaaaaaaaaaaaaaa') }}", &["bytes"]);
    refused("{{ 'a\nb'|indent(2000000000) }}", &["bytes"]);
    refused("{{ '%1000000000d'|format(1) }}", &["more than 4 digits"]);
    refused("{{ '{:1000000000}'.format(1) }}", &["more than 4 digits"]);
    refused("{{ [1]|batch(1000000000, 'x') }}", &["bytes"]);
    refused("{{ 'a' * 10000000000 }}", &["too large"]);
}

#[test]
fn lists_do_not_grow_without_bound() {
    let grows = |begin: &str, step: &str, end: &str| {
        let template = format!("{begin}{}{end}", step.repeat(60));
        refused(&template, &["bytes"]);
    };
    let begin = "{% set ns=namespace(s=[1]) %}";
    grows(begin, "{% set ns.s=ns.s+ns.s %}", "");
    grows(begin, "{% set ns.s=[ns.s, ns.s] %}", "{{ ns.s }}");
    grows(begin, "{% set ns.s=ns.s*2 %}", "");
    grows("{% set s=[1] %}", "{% set s=s+s %}", "{{ s|length }}");
    grows("{% set s=[1]|map('string') %}", "{% set s=s+s %}", "{{ s|list }}");
    grows("{% set s=[1] %}", "{% set s=s*2 %}", "{{ 2 in s }}");
    for end in ["|list", "|tojson", "|join", "|sum", ""] {
        refused(&format!("{{{{ ([1]*1000000000000){end} }}}}"), &["bytes"]);
    }
    let many = "{% set s='a'*60000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}";
    refused(many, &["bytes"]);
}

#[test]
fn a_division_by_zero_is_an_error_as_in_python() {
    for term in
        ["1/0", "1//0", "1%0", "1/0.0", "1.5//0.0", "1.5%0", "1/-0", "2*(1/(3-3))", "1/false", "1/n", "4/2/n|int"]
    {
        refused(&format!("{{% set n=0 %}}a\n{{{{ {term} }}}}"), &["the given template:2", "division by zero"]);
    }
    refused("{% if 1/0 %}{% endif %}", &["division by zero"]);
    for (template, expected) in [
        ("{{ 7/2 }} {{ 7//2 }} {{ 7%2 }} {{ 1/2+1 }} {{ 8/2/2 }}", "3.5 3 1 1.5 2.0"),
        ("{{ 8 / messages|length }} {{ 8 // -(messages|length) }} {{ 1 / 2 ** 2 }}", "8.0 -8 0.25"),
        ("{% set n=3 %}{{ -n|abs }}{{ 1 - -n }}{{ 1 == -n|abs - 2 }}{{ [1, 2, -n][-1] }}", "34True-3"),
        ("{{ '7'|int / '2'|int }}{{ 4 / nothing|default(2) }}", "3.52.0"),
    ] {
        assert_eq!(render(template).unwrap_or_else(|error| error.message), expected, "{template}");
    }
}

#[test]
fn long_texts_are_cut_in_messages() {
    let error = render("{{ raise_exception('ä' * 3000000) }}").unwrap_err();
    assert!(
        error.message.len() < 5000 && error.message.starts_with("the given template:1: ää"),
        "{}",
        error.message.len()
    );
    let folder = changed("byte_level", |json| json["added_tokens"][0]["content"] = json!("x".repeat(1_000_000)));
    let message = Tokenizer::open(&folder.0).err().map_or_else(String::new, |error| error.message);
    assert!(message.len() < 5000, "{}", message.len());
}

#[test]
fn what_is_counted_keeps_its_value() {
    for (template, expected) in [
        ("{{ messages[0].content + '!' }}", "Hello!"),
        ("{{ messages[0]['content'] ~ loop ~ 1 }}", "Hello1"),
        ("{{ 'a' + messages[0].content|upper + (1 + 2)|string }}", "aHELLO3"),
        ("{{ messages[0].content is string and 1 + 1 == 2 }}", "True"),
        ("{{ ('x' + messages[0].role if messages[0].role == 'user' else 'y' ~ 'z') }}", "xuser"),
        ("{% set a, b = 1, 'x' ~ messages[0].role %}{{ a }}{{ b }}", "1xuser"),
        ("{% set n = namespace(i=1) %}{% set n.i = n.i + 1 if true else 2 %}{{ n.i }}", "2"),
        ("{% set n = namespace() %}{% set n.i = 1, 2 %}{{ n.i }}", "[1, 2]"),
        ("{% set x | upper %}a{% endset %}{{ x }}", "A"),
        ("{% filter upper | lower %}A{% endfilter %}", "a"),
        ("{{ {'a' + messages[0].role: [messages[0].role + 'b']}['auser'][0] }}", "userb"),
        ("{{ messages[0].content[1:3] + messages[0].content[::-1] }}", "elolleH"),
        ("{% for m in messages + messages|list if m.role + '' == 'user' %}{{ m.role }}{% endfor %}", "useruser"),
        ("{{ nothing|default('x') + 'y' }}{{ messages|map(attribute='role')|join('-') }}", "xyuser"),
        ("{% macro f(a='x' ~ 'y') %}{{ a }}{% endmacro %}{{ f() + f(a='z' + messages[0].role) }}", "xyzuser"),
        ("{{ 'a\nb'|indent(2) }}|{{ 'a\nb'|indent(width=1, first=true) }}", "a\n  b| a\n b"),
        ("{{ '%s-%05d'|format('a', 3) }}{{ 'aXbX'.replace('X', 'y', 1) }}", "a-00003aybX"),
    ] {
        assert_eq!(render(template).unwrap_or_else(|error| error.message), expected, "{template}");
    }
}

#[test]
fn long_conversations_have_the_steps_that_they_need() {
    let messages = json!(vec![json!({"role": "user", "content": "x"}); 40_000]).to_string();
    let template = "{% for m in messages %}{% if m.role == 'user' %}{{ '<' + m.role + '>' + m.content }}{% endif %}\
                    {% for i in range(20) %}{% if i == loop.index0 %}{{ '' }}{% endif %}{% endfor %}{% endfor %}";
    let chat = Chat { messages_json: &messages, template_text: template, ..Default::default() };
    assert_eq!(open("metaspace").render(&chat).unwrap().text.len(), 40_000 * 7);
}

/// A tokenizer.json of golden files with a change.
fn changed(golden_name: &str, change: impl FnOnce(&mut Value)) -> Folder {
    // Each change has its own folder, as tests run at the same time.
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let name = format!("limits-{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let folder = Folder::of_golden(&name, golden_name);
    let mut json = serde_json::from_str(&folder.read("tokenizer.json")).unwrap();
    change(&mut json);
    folder.write("tokenizer.json", json.to_string().as_bytes());
    folder
}

fn encode(folder: &Folder, text: &str) -> Result<Vec<i32>> {
    let mut out = Encoded::default();
    Tokenizer::open(&folder.0)?.encode(text, true, &mut out)?;
    Ok(out.ids)
}

fn refused_part(folder: &Folder, text: &str, words: &[&str]) {
    let error = encode(folder, text).unwrap_err();
    let named = |word: &&str| error.message.contains(*word);
    assert!(error.message.contains("tokenizer.json") && words.iter().all(named), "{error}");
    assert!(!error.message.contains(".rs:"), "{error}");
}

#[test]
fn parts_that_the_library_cannot_use_are_named() {
    for pattern in [json!({"String": ""}), json!({"Regex": ""})] {
        let replace = json!({"type": "Replace", "pattern": pattern, "content": "x"});
        let folder = changed("byte_level", |json| json["normalizer"] = replace.clone());
        refused_part(&folder, "a", &["normalizer", "empty"]);
        let folder = changed("byte_level", |json| json["decoder"] = replace.clone());
        refused_part(&folder, "a", &["decoder", "empty"]);
    }
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    refused_part(&changed("byte_level", |json| json["normalizer"] = precompiled), "a", &["normalizer"]);
    // The length of its trie alone would take 8 GiB.
    let huge = json!({"type": "Precompiled", "precompiled_charsmap": "/////wAA"});
    for normalizer in [huge.clone(), json!({"type": "Sequence", "normalizers": [huge]})] {
        let folder = changed("byte_level", |json| json["normalizer"] = normalizer);
        refused_part(&folder, "a", &["normalizer", "6 bytes", "4294967295"]);
    }
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<nope>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}});
    let folder = changed("byte_level", |json| json["post_processor"] = template);
    refused_part(&folder, "a", &["post_processor", "no entry"]);
}

#[test]
fn a_regular_expression_that_gives_up_is_named_with_what_to_try() {
    let split = json!({"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": false});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    for steps in [json!([split, byte_level]), json!([split])] {
        let sequence = json!({"type": "Sequence", "pretokenizers": steps});
        let folder = changed("byte_level", |json| json["pre_tokenizer"] = sequence);
        refused_part(&folder, &("a".repeat(2000) + "b"), &["pre_tokenizer", "gave up", "split long runs"]);
    }
}

#[test]
fn a_normalizer_cannot_make_a_text_arbitrarily_long() {
    let replace = |n: usize| json!({"type": "Replace", "pattern": {"String": "l"}, "content": "l".repeat(n)});
    let four = json!({"type": "Sequence", "normalizers": vec![replace(1000); 4]});
    refused_part(
        &changed("byte_level", |json| json["normalizer"] = four),
        "Hello world",
        &["normalizer.normalizers[1]", "4096"],
    );
    let folder = changed("byte_level", |json| json["normalizer"] = replace(1000));
    refused_part(&folder, &"l".repeat(2000), &["normalizer", "2000", "limit"]);
    let folder = changed("byte_level", |json| json["normalizer"] = replace(100));
    refused_part(&folder, "hello", &["normalizer", "a text of 5 bytes", "202 ids", "96"]);
    let folder = changed("byte_level", |json| json["normalizer"] = replace(10));
    assert!(!encode(&folder, "hello").unwrap().is_empty());
}

#[test]
fn what_normalizers_put_before_a_text_is_bounded_and_named() {
    let prepend = |n: usize| json!({"type": "Prepend", "prepend": "x".repeat(n)});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    refused_part(
        &changed("byte_level", |json| json["normalizer"] = prepend(1_000_000)),
        "a",
        &["normalizer", "1000000"],
    );
    let folder = changed("byte_level", |json| json["normalizer"] = sequence(vec![prepend(6); 3]));
    refused_part(&folder, "a", &["normalizer.normalizers[2]", "18 bytes", "16"]);
    let replace = json!({"type": "Replace", "pattern": {"String": "x"}, "content": "y".repeat(100)});
    let folder = changed("byte_level", |json| json["normalizer"] = sequence(vec![prepend(1), replace]));
    refused_part(&folder, "a", &["normalizer.normalizers[1]", "100 bytes", "16"]);
    let folder = changed("byte_level", |json| json["normalizer"] = sequence(vec![prepend(1), prepend(15)]));
    assert!(!encode(&folder, "").unwrap().is_empty() || !encode(&folder, "h").unwrap().is_empty());
}

#[test]
fn a_post_processor_that_does_not_fit_the_vocabulary_is_refused() {
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let template = |single: &Value, id: u64| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [],
               "special_tokens": {"<s>": {"id": "<s>", "ids": [id], "tokens": ["<s>"]}}})
    };
    let good = json!([special, text]);
    let refuses = |value: Value, words: &[&str]| {
        refused_part(&changed("byte_level", |json| json["post_processor"] = value.clone()), "a", words);
    };
    assert!(!encode(&changed("byte_level", |json| json["post_processor"] = template(&good, 0)), "a")
        .unwrap()
        .is_empty());
    refuses(template(&good, 999_999), &["post_processor", "\"<s>\"", "999999"]);
    refuses(template(&json!([special, text, text]), 0), &["post_processor.single", "2 times"]);
    let sequence = json!({"type": "Sequence", "processors": [template(&good, 999_999)]});
    refuses(sequence, &["post_processor.processors[0]", "999999"]);
    let roberta = json!({"type": "RobertaProcessing", "sep": ["</s>", 999_999], "cls": ["<s>", 0], "trim_offsets": true,
                         "add_prefix_space": true});
    refuses(roberta, &["post_processor", "\"</s>\"", "999999"]);
}

#[test]
fn an_added_token_with_another_id_in_another_file_is_refused() {
    let folder = Folder::of_golden("added-id", "byte_level");
    let json: Value = serde_json::from_str(&folder.read("tokenizer.json")).unwrap();
    let mut config: Value = serde_json::from_str(&folder.read("tokenizer_config.json")).unwrap();
    let (token, id) = (json["added_tokens"][0].clone(), json["added_tokens"][0]["id"].clone());
    let mut with_id = |id: &str| {
        config["added_tokens_decoder"] = json!({id: token});
        folder.write("tokenizer_config.json", config.to_string().as_bytes());
        Tokenizer::open(&folder.0).err().map_or_else(String::new, |error| error.message)
    };
    assert_eq!(with_id(&id.to_string()), "");
    let message = with_id("777");
    assert!(
        ["tokenizer_config.json", "should have id 777", &format!("gets {id}")].iter().all(|w| message.contains(w)),
        "{message}"
    );
}

#[test]
fn a_character_that_the_vocabulary_cannot_spell_is_an_error_that_names_it() {
    // Tokens keep their ids under other names.
    fn rename(json: &mut Value, letter: char) {
        for key in ["vocab", "merges"] {
            let text = json["model"][key].to_string().replace(letter, "\u{e000}");
            json["model"][key] = serde_json::from_str(&text).unwrap();
        }
    }
    refused_part(&changed("byte_level", |json| rename(json, 'Q')), "aQb", &["'Q'", "U+0051"]);
    // Takes the path through the library.
    let folder = changed("byte_level", |json| {
        rename(json, 'q');
        json["normalizer"] = json!({"type": "Lowercase"});
    });
    refused_part(&folder, "aQb", &["'q'"]);
}

#[test]
fn ids_that_contradict_each_other_are_refused() {
    let folder = changed("byte_level", |json| json["added_tokens"][0]["id"] = json!(77));
    refused_part(&folder, "a", &["added_tokens[0]", "77"]);
    let folder = changed("byte_level", |json| json["added_tokens"][0]["content"] = json!(""));
    refused_part(&folder, "a", &["added_tokens[0]", "empty"]);
    let folder = changed("byte_level", |json| {
        json["model"]["vocab"]["Q"] = json["model"]["vocab"]["a"].clone();
    });
    refused_part(&folder, "a", &["model.vocab", "same id"]);
}

#[test]
fn keys_of_the_wrong_type_are_refused_by_name() {
    for (key, value) in [
        ("eos_token", json!(5)),
        ("eos_token", json!({"content": 3})),
        ("bos_token", json!(["a"])),
        ("add_bos_token", json!("yes")),
        ("added_tokens_decoder", json!([1])),
        ("additional_special_tokens", json!("x")),
    ] {
        let folder = Folder::of_golden("types", "byte_level");
        let mut config: Value = serde_json::from_str(&folder.read("tokenizer_config.json")).unwrap();
        config[key] = value;
        folder.write("tokenizer_config.json", config.to_string().as_bytes());
        let error = folder.error();
        assert!(error.message.contains("tokenizer_config.json") && error.message.contains(key), "{error}");
    }
}

#[test]
fn a_run_of_white_space_that_is_too_long_for_a_regular_expression_is_an_error() {
    let folder = Folder::of_golden("runs", "byte_level");
    refused_part(&folder, &(" ".repeat(11_000_000) + "x\n"), &["pre_tokenizer", "split long runs"]);
}
