//! Vocabularies made from texts.
use crate::Folder;
use chassis_hf_core::{Chat, Encoded, Error, ErrorKind, Result, Tokenizer, LEAF_GENERATION};
use std::time::{Duration, Instant};

fn texts() -> Vec<String> {
    (0..400)
        .map(|i| format!("The quick brown fox no. {i} jumps over the lazy dog.\n\nСъешь ещё {} булок\n", i * 7))
        .collect()
}

fn train(vocab_size: i64, min_frequency: u64, num_threads: u32, texts: Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
    let mut texts = texts.into_iter();
    Tokenizer::train(vocab_size, min_frequency, num_threads, &mut || Ok(texts.next()))
}

fn folder(name: &str, files: &[(String, Vec<u8>)]) -> Folder {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    Folder::new(name, &files)
}

#[test]
fn a_trained_vocabulary_opens_and_reads_back_any_text() {
    let files = train(400, 2, 2, texts()).unwrap();
    let folder = folder("trained", &files);
    let tokenizer = Tokenizer::open(&folder.0).unwrap();
    let info = tokenizer.info();
    assert_eq!(info.vocab_size, 400);
    assert_eq!((info.bos_id, info.eos_id, info.pad_id), (0, 0, 1));
    assert!(!info.adds_bos);
    for text in ["The quick brown fox", "  \n\t x", "любые 文字 😀 \u{0}", "<|im_end|>", ""] {
        let mut out = Encoded::default();
        tokenizer.encode(text, false, &mut out).unwrap();
        assert!(!out.ids.contains(&tokenizer.id_of("<|im_end|>")));
        assert_eq!(String::from_utf8(tokenizer.decode(&out.ids, true).unwrap()).unwrap(), text);
    }
    let mut out = Encoded::default();
    tokenizer.encode("The quick brown fox", false, &mut out).unwrap();
    assert_eq!(out.ids.len(), 4);
}

#[test]
fn a_long_word_takes_linear_time() {
    let mut state = 1u64;
    let mut letter = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        b"abcdefgh"[(state >> 61) as usize] as char
    };
    let word: String = (0..1 << 20).map(|_| letter()).collect();
    let start = Instant::now();
    let files = train(320, 2, 1, vec![word]).unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}; an hour if it were quadratic", start.elapsed());
    assert_eq!(Tokenizer::open(&folder("long-word", &files).0).unwrap().info().vocab_size, 320);
}

#[test]
fn a_text_without_line_ends_gives_the_same_files_as_its_parts() {
    let parts = vec![" quick fox, 12 jumps".to_owned(); 20_000];
    assert_eq!(train(300, 0, 1, vec![parts.concat()]).unwrap(), train(300, 0, 1, parts).unwrap());
}

#[test]
fn its_chat_template_marks_what_the_assistant_says() {
    let folder = folder("template", &train(300, 0, 1, texts()).unwrap());
    let tokenizer = Tokenizer::open(&folder.0).unwrap();
    let messages_json = r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]"#;
    let rendered = tokenizer.render(&Chat { messages_json, spans: true, ..Default::default() }).unwrap();
    assert_eq!(rendered.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n");
    let span = &rendered.spans[0];
    assert_eq!((rendered.spans.len(), span.leaf, span.message), (1, LEAF_GENERATION, 1));
    assert_eq!(&rendered.text[span.begin as usize..span.end as usize], "Hello<|im_end|>");
}

#[test]
fn its_chat_template_shows_tools_calls_results_and_reasoning() {
    let folder = folder("tools", &train(300, 0, 1, texts()).unwrap());
    let tokenizer = Tokenizer::open(&folder.0).unwrap();
    let messages_json = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Sum?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "2"}, {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Six.", "reasoning_content": "Easy."}]"#;
    let tools_json = r#"[{"type": "function", "function": {"name": "add"}}]"#;
    let rendered = tokenizer.render(&Chat { messages_json, tools_json, spans: true, ..Default::default() }).unwrap();
    let (front, rest) = rendered.text.split_once("<|im_start|>user\nSum?").unwrap();
    assert!(front.starts_with("<|im_start|>system\nBe brief.\n\n# Tools\n"), "{front}");
    assert!(
        front.contains("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"add\"}}\n</tools>"),
        "{front}"
    );
    assert_eq!(
        rest,
        "<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\
         <|im_end|>\n<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>\
         <|im_end|>\n<|im_start|>assistant\n<think>\nEasy.\n</think>\n\nSix.<|im_end|>\n"
    );
    let blocks: Vec<u64> = rendered.spans.iter().map(|span| span.message).collect();
    assert_eq!(blocks, [2, 5]);
}

#[test]
fn generation_stops_at_the_end_of_texts_and_of_turns() {
    let files = train(300, 0, 1, texts()).unwrap();
    let folder = folder("stops", &files);
    let end_of_turn = Tokenizer::open(&folder.0).unwrap().id_of("<|im_end|>");
    let (_, content) = files.iter().find(|(name, _)| name == "generation_config.json").unwrap();
    let numbers: String = String::from_utf8_lossy(content).chars().filter(|c| !c.is_whitespace()).collect();
    assert_eq!(numbers, format!("{{\"eos_token_id\":[0,{end_of_turn}]}}"));
}

#[test]
fn equal_texts_make_equal_files_with_any_number_of_threads() {
    let expected = train(350, 0, 1, texts()).unwrap();
    for num_threads in [1, 2, 5] {
        assert_eq!(train(350, 0, num_threads, texts()).unwrap(), expected);
    }
    // Neither does it matter how texts are cut where words end anyway.
    assert_eq!(train(350, 0, 2, vec![texts().concat()]).unwrap(), expected);
}

#[test]
fn texts_with_too_few_pairs_make_a_smaller_vocabulary() {
    let folder = folder("few", &train(1000, 0, 1, vec!["aab aab".to_owned()]).unwrap());
    let size = Tokenizer::open(&folder.0).unwrap().info().vocab_size;
    assert!((261..270).contains(&size), "{size}");
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let error = train(259, 0, 1, texts()).unwrap_err();
    assert!(error.kind == ErrorKind::InvalidArgument && error.message.contains("260"), "{error}");
    assert_eq!(train(1000, 0, 1, vec![]).unwrap_err().kind, ErrorKind::InvalidArgument);
    let mut next = || Err(Error { kind: ErrorKind::NotFound, message: "lost".to_owned() });
    assert_eq!(Tokenizer::train(300, 0, 1, &mut next).unwrap_err().kind, ErrorKind::NotFound);
}
