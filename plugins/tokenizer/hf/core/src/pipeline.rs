//! Checks tokenizer.json: whatever this crate does not support is refused by name, before the library sees it.
use crate::error::{Error, Result};
use crate::guarded::guarded;
use serde::de::IgnoredAny;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// The parts of tokenizer.json that are checked here; the vocabulary and the merges are left to the library.
#[derive(Deserialize)]
pub(crate) struct Head {
    model: ModelHead,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Value,
}

#[derive(Deserialize)]
struct ModelHead {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    vocab: Option<IgnoredAny>,
}

const MODELS: [&str; 4] = ["BPE", "WordPiece", "WordLevel", "Unigram"];
const NORMALIZERS: [&str; 14] = [
    "BertNormalizer",
    "Strip",
    "StripAccents",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Sequence",
    "Lowercase",
    "Nmt",
    "Precompiled",
    "Replace",
    "Prepend",
    "ByteLevel",
];
const PRE_TOKENIZERS: [&str; 13] = [
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Delimiter",
    "Metaspace",
    "Whitespace",
    "Sequence",
    "Split",
    "Punctuation",
    "WhitespaceSplit",
    "Digits",
    "UnicodeScripts",
    "FixedLength",
];
const POST_PROCESSORS: [&str; 5] =
    ["RobertaProcessing", "BertProcessing", "ByteLevel", "TemplateProcessing", "Sequence"];
const DECODERS: [&str; 10] = [
    "BPEDecoder",
    "ByteLevel",
    "WordPiece",
    "Metaspace",
    "CTC",
    "Sequence",
    "Replace",
    "Fuse",
    "Strip",
    "ByteFallback",
];

impl Head {
    pub(crate) fn read(file: &str, content: &[u8]) -> Result<Head> {
        let head: Head = serde_json::from_slice(content).map_err(|error| {
            Error::invalid(format!("{file}:{}:{}: not a tokenizer.json: {error}", error.line(), error.column()))
        })?;
        head.check(file)?;
        Ok(head)
    }

    fn check(&self, file: &str) -> Result<()> {
        if self.model.vocab.is_none() {
            return Err(Error::invalid(format!("{file}: model.vocab is missing")));
        }
        if let Some(kind) = self.model.kind.as_deref().filter(|kind| !MODELS.contains(kind)) {
            return Err(unknown(file, "model", kind, &MODELS));
        }
        if let Some(dropout) = self.model.dropout.filter(|dropout| *dropout > 0.0) {
            return Err(Error::precondition(format!(
                "{file}: model.dropout is {dropout}, so that one text gets other ids each time; set it to null"
            )));
        }
        check_types(file, "normalizer", "normalizers", &self.normalizer, &NORMALIZERS)?;
        check_types(file, "pre_tokenizer", "pretokenizers", &self.pre_tokenizer, &PRE_TOKENIZERS)?;
        check_types(file, "post_processor", "processors", &self.post_processor, &POST_PROCESSORS)?;
        check_types(file, "decoder", "decoders", &self.decoder, &DECODERS)?;
        check_growth(&format!("{file}: normalizer"), &self.normalizer, &mut Growth { factor: 1, before: 0 })?;
        check_patterns(&format!("{file}: normalizer"), "normalizers", &self.normalizer)?;
        check_charsmaps(&format!("{file}: normalizer"), &self.normalizer)?;
        check_patterns(&format!("{file}: decoder"), "decoders", &self.decoder)?;
        check_part::<NormalizerWrapper>(file, "normalizer", &self.normalizer)?;
        check_part::<PreTokenizerWrapper>(file, "pre_tokenizer", &self.pre_tokenizer)?;
        check_part::<DecoderWrapper>(file, "decoder", &self.decoder)
    }

    /// `exists` says whether the vocabulary has an id.
    pub(crate) fn check_post_processor(&self, file: &str, exists: &dyn Fn(u64) -> bool) -> Result<()> {
        let part = format!("{file}: post_processor");
        check_template(&part, &self.post_processor)?;
        check_post_processor(&part, &self.post_processor, exists)
    }

    /// Checks that the ids of added_tokens are those that the library gives them.
    pub(crate) fn check_ids(&self, file: &str, tokenizer: &tokenizers::Tokenizer) -> Result<()> {
        let wrong = |i: usize, what: String| Err(Error::invalid(format!("{file}: added_tokens[{i}]: {what}")));
        let mut seen = HashMap::new();
        for (i, token) in self.added_tokens.as_array().into_iter().flatten().enumerate() {
            let (Some(content), Some(id)) = (token["content"].as_str(), token["id"].as_u64()) else {
                return wrong(i, "it has no content or no id".to_owned());
            };
            if content.is_empty() {
                return wrong(i, "its content is empty".to_owned());
            }
            if let Some(other) = seen.insert(id, content).filter(|other| *other != content) {
                return wrong(i, format!("{content:?} has the id {id}, which {other:?} has"));
            }
            match tokenizer.token_to_id(content) {
                Some(got) if u64::from(got) != id => {
                    return wrong(i, format!("{content:?} has the id {id}, but by the vocabulary it is {got}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

const MAX_GROWTH: usize = 4096;
const MAX_BEFORE: usize = 16;

/// Names the part that the library cannot construct; its own error for the file names none.
fn check_part<T: serde::de::DeserializeOwned>(file: &str, part: &str, value: &Value) -> Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let part = format!("{file}: {part}");
    guarded(&part, || {
        let made = serde_json::from_value::<T>(value.clone());
        made.map(|_| ()).map_err(|error| Error::invalid(format!("{part}: {error}")))
    })
}

/// Patterns that match nothing are refused.
fn check_patterns(part: &str, list: &str, value: &Value) -> Result<()> {
    if value["type"] == "Replace" {
        let pattern = value["pattern"].get("String").or_else(|| value["pattern"].get("Regex"));
        if pattern.and_then(Value::as_str) == Some("") {
            return Err(Error::invalid(format!("{part}: the pattern of a Replace is empty")));
        }
    }
    let members = value[list].as_array().into_iter().flatten().enumerate();
    members.map(|(i, member)| check_patterns(&format!("{part}.{list}[{i}]"), list, member)).collect()
}

/// The data of a Precompiled begins with the length of its trie; the library would allocate that much before reading
/// the trie.
fn check_charsmaps(part: &str, value: &Value) -> Result<()> {
    if let Some(text) = value["precompiled_charsmap"].as_str().filter(|_| value["type"] == "Precompiled") {
        let num_bytes = text.trim_end_matches('=').len() as u64 * 3 / 4;
        let trie_bytes = u64::from(first_number(text).unwrap_or(0));
        if trie_bytes > num_bytes.saturating_sub(4) {
            return Err(Error::invalid(format!(
                "{part}: its precompiled_charsmap has {num_bytes} bytes, and says that its trie has {trie_bytes}: \
                 it is damaged; copy the file again"
            )));
        }
    }
    let members = value["normalizers"].as_array().into_iter().flatten().enumerate();
    members.map(|(i, member)| check_charsmaps(&format!("{part}.normalizers[{i}]"), member)).collect()
}

/// The first four bytes of a text in base64, little-endian. None if it is shorter or is not base64, which the library
/// reports.
fn first_number(text: &str) -> Option<u32> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = 0u64;
    for i in 0..6 {
        let digit = DIGITS.iter().position(|digit| Some(digit) == text.as_bytes().get(i))?;
        bits = bits << 6 | digit as u64;
    }
    Some(((bits >> 4) as u32).swap_bytes())
}

/// How much longer normalizers may make a text: `factor` times, plus the bytes that they prepend.
struct Growth {
    factor: usize,
    before: usize,
}

/// Refuses the first normalizer at which the normalizers so far exceed the limits.
fn check_growth(part: &str, value: &Value, growth: &mut Growth) -> Result<()> {
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    match text("type") {
        "Replace" => {
            let factor = text("content").len().max(1);
            growth.factor = growth.factor.saturating_mul(factor);
            growth.before = growth.before.saturating_mul(factor);
        }
        "Prepend" => growth.before = growth.before.saturating_add(text("prepend").len()),
        _ => {}
    }
    let Growth { factor, before } = *growth;
    if factor > MAX_GROWTH {
        return Err(Error::invalid(format!(
            "{part}: with it the replacements may make a text {factor} times as long; the limit is {MAX_GROWTH}"
        )));
    }
    if before > MAX_BEFORE {
        return Err(Error::invalid(format!(
            "{part}: with it up to {before} bytes are put before every text; the limit is {MAX_BEFORE}"
        )));
    }
    let members = value["normalizers"].as_array().into_iter().flatten().enumerate();
    members.map(|(i, member)| check_growth(&format!("{part}.normalizers[{i}]"), member, growth)).collect()
}

/// The ids that a post-processor names must exist; it is applied only for the bos token, so nothing else in it changes
/// a text.
fn check_post_processor(part: &str, value: &Value, exists: &dyn Fn(u64) -> bool) -> Result<()> {
    let listed = value["special_tokens"]
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(name, token)| token["ids"].as_array().into_iter().flatten().map(move |id| (name.as_str(), id)));
    let pairs = ["sep", "cls"].iter().filter_map(|key| Some((value[key][0].as_str()?, &value[key][1])));
    for (name, id) in listed.chain(pairs) {
        if id.as_u64().is_some_and(|id| !exists(id)) {
            return Err(Error::invalid(format!(
                "{part}: {name:?} has the id {id}, which the vocabulary does not have"
            )));
        }
    }
    let members = value["processors"].as_array().into_iter().flatten().enumerate();
    members.map(|(i, member)| check_post_processor(&format!("{part}.processors[{i}]"), member, exists)).collect()
}

/// Requires that the template has the text exactly once, as in every model.
fn check_template(part: &str, value: &Value) -> Result<()> {
    if let Some(single) = value["single"].as_array() {
        let num_texts = single.iter().filter(|piece| piece["Sequence"]["id"] == "A").count();
        if num_texts != 1 {
            return Err(Error::invalid(format!("{part}.single has the text {num_texts} times, expected once")));
        }
    }
    let members = value["processors"].as_array().into_iter().flatten().enumerate();
    members.map(|(i, member)| check_template(&format!("{part}.processors[{i}]"), member)).collect()
}

/// `list` is the key under which a Sequence of this part has its members.
fn check_types(file: &str, part: &str, list: &str, value: &Value, known: &[&str]) -> Result<()> {
    let Some(object) = value.as_object() else { return Ok(()) };
    match object.get("type").and_then(Value::as_str) {
        Some(kind) if !known.contains(&kind) => return Err(unknown(file, part, kind, known)),
        Some(_) => {}
        None => return Err(Error::invalid(format!("{file}: {part}.type is missing"))),
    }
    let members = object.get(list).and_then(Value::as_array).into_iter().flatten();
    members
        .enumerate()
        .try_for_each(|(i, member)| check_types(file, &format!("{part}.{list}[{i}]"), list, member, known))
}

fn unknown(file: &str, part: &str, kind: &str, known: &[&str]) -> Error {
    Error::invalid(format!("{file}: {part} has the unknown type '{kind}'; known types are {}", known.join(", ")))
}
