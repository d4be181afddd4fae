//! Fuzzes a tokenizer_config.json next to a valid tokenizer.json, or a tokenizer.json alone: opening the directory,
//! rendering a conversation by its chat template, and encoding the text must give results or errors, without a panic,
//! which would end the process.
use chassis_hf_core::{Chat, Encoded, Tokenizer};
use std::path::PathBuf;
use std::sync::OnceLock;

const TOKENIZER: &[u8] = include_bytes!("../../core/tests/golden/byte_level/tokenizer.json");
const MESSAGES: &str = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"},
  {"role": "assistant", "content": " Hello\n", "reasoning_content": "short",
   "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]},
  {"role": "tool", "content": "3"}, {"role": "assistant", "content": "Three."}]"#;

fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("chassis-tokenizer-config-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("tokenizer.json"), TOKENIZER).expect("a file");
        folder
    })
}

fn try_config(config: &[u8]) {
    std::fs::write(folder().join("tokenizer_config.json"), config).expect("a file");
    let Ok(tokenizer) = Tokenizer::open(folder()) else { return };
    for spans in [false, true] {
        let chat = Chat { messages_json: MESSAGES, spans, generation_prompt: !spans, ..Chat::default() };
        let Ok(rendered) = tokenizer.render(&chat) else { continue };
        for span in &rendered.spans {
            assert!(rendered.text.get(span.begin as usize..span.end as usize).is_some(), "a span outside of the text");
        }
        let mut encoded = Encoded::default();
        if tokenizer.encode(&rendered.text, true, &mut encoded).is_ok() {
            tokenizer.decode(&encoded.ids, true).expect("the text of ids that it made");
        }
    }
}

fn try_tokenizer(json: &[u8]) {
    let folder = folder().with_extension("alone");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("tokenizer.json"), json).expect("a file");
    let Ok(tokenizer) = Tokenizer::open(&folder) else { return };
    let mut encoded = Encoded::default();
    for text in ["", "Hi <|im_end|> there, ½ ﬁ 你好\n", "aaaaaaaaaaaaaaaa"] {
        if tokenizer.encode(text, true, &mut encoded).is_ok() {
            tokenizer.decode(&encoded.ids, true).ok();
        }
    }
}

/// # Safety
/// `data` has `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn chassis_fuzz_tokenizer_json(data: *const u8, size: usize) {
    if size > 0 {
        try_tokenizer(unsafe { std::slice::from_raw_parts(data, size) });
    }
}

/// # Safety
/// `data` has `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn chassis_fuzz_tokenizer_config(data: *const u8, size: usize) {
    if size > 0 {
        try_config(unsafe { std::slice::from_raw_parts(data, size) });
    }
}
