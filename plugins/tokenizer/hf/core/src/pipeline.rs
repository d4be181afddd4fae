//! tokenizer.json: what this crate cannot do is refused by name, before the library sees it.
use crate::error::{Error, Result};
use serde::de::IgnoredAny;
use serde::Deserialize;
use serde_json::Value;

/// The parts of tokenizer.json that are looked at here; the vocabulary and the merges are left to the library.
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
        check_types(file, "decoder", "decoders", &self.decoder, &DECODERS)
    }
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
    Error::invalid(format!("{file}: {part} has the unknown type '{kind}'; known are {}", known.join(", ")))
}
