//! Text to ids with byte offsets, and back.
//!
//! tokenizer.json decides everything, except that its truncation, padding and post-processor are not applied: ids are
//! those that the text spells. Classes of transformers that build a pipeline of their own instead are not imitated.
//! `add_bos_token` and `add_eos_token` of tokenizer_config.json change nothing: transformers 5 drops both where there
//! is a tokenizer.json, whose post-processor says whether a text begins with bos.
use crate::byte_level::{ceil_char, floor_char, ByteLevelBpe};
use crate::chat::{self, Chat, Rendered};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::guarded::{guarded, Bounded};
use crate::jinja::Templates;
use crate::pipeline::Head;
use crate::sha256::Sha256;
use crate::special_tokens;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use tokenizers::tokenizer::{Decoder, Model, PreTokenizer};
use tokenizers::{AddedVocabulary, ModelWrapper, NormalizedString, Normalizer, OffsetType};

/// As CHASSIS_TOKEN_… in chassis/kind/tokenizer.h.
pub const TOKEN_SPECIAL: u32 = 1;
pub const TOKEN_ADDED: u32 = 2;
pub const TOKEN_UNUSED: u32 = 4;

const MAX_IDS_PER_BYTE: usize = 16; // and as many for the end of the text
/// The maximum of one word, since the library takes about 150 bytes of memory for each of its bytes.
const MAX_WORD_BYTES: usize = 16 << 20;

#[derive(Clone, Debug)]
pub struct Info {
    pub bos_id: i32, // -1: there is none
    pub eos_id: i32,
    pub pad_id: i32,
    pub unk_id: i32,
    pub vocab_size: i64,
    /// HF's encode() with add_special_tokens=True begins with bos_id.
    pub adds_bos: bool,
    pub fingerprint: String,
    pub chat_template: String,
}

/// ids[i] covers bytes [begin[i], end[i]) of the text; parts of one character have the same range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<i32>,
    pub begin: Vec<u64>,
    pub end: Vec<u64>,
}

pub struct Tokenizer {
    file: String, // tokenizer.json
    inner: tokenizers::Tokenizer,
    /// The added tokens without the special ones, to encode these as plain text.
    plain: AddedVocabulary,
    byte_level: Option<ByteLevelBpe>, // a faster path, if the pipeline is of this kind
    entries: Vec<(u32, String)>,      // flags and spelling of each id
    ids: HashMap<String, i32>,
    templates: Templates,
    info: Info,
}

impl Tokenizer {
    pub fn open(path: &Path) -> Result<Tokenizer> {
        let directory = Directory::read(path)?;
        let file = directory.file("tokenizer.json");
        let head = Head::read(&file, &directory.tokenizer_json)?;
        let mut inner = guarded(&file, || {
            tokenizers::Tokenizer::from_bytes(&directory.tokenizer_json)
                .map_err(|error| Error::invalid(format!("{file}: {error}")))
        })?;
        head.check_ids(&file, &inner)?;
        inner.with_truncation(None).map_err(|error| Error::invalid(format!("{file}: {error}")))?;
        inner.with_padding(None);
        let specials = guarded(&format!("{file}: normalizer"), || special_tokens::add(&directory, &mut inner))?;

        let entries = entries(&inner, &file)?;
        head.check_post_processor(&file, &|id| {
            let entry = usize::try_from(id).ok().and_then(|id| entries.get(id));
            entry.is_some_and(|(flags, _)| flags & TOKEN_UNUSED == 0)
        })?;
        let ids: HashMap<String, i32> = entries
            .iter()
            .enumerate()
            .filter(|(_, (flags, _))| flags & TOKEN_UNUSED == 0)
            .map(|(id, (_, text))| (text.clone(), id as i32))
            .collect();
        let special_id = |name: &str| specials.get(name).and_then(|text| ids.get(text)).copied().unwrap_or(-1);
        let begins_with = first_special_id(&inner, &file)?;
        // The post-processor adds its token whether or not a file names it bos_token.
        let bos_id = match special_id("bos_token") {
            -1 => begins_with.unwrap_or(-1),
            id => id,
        };
        let info = Info {
            bos_id,
            eos_id: special_id("eos_token"),
            pad_id: special_id("pad_token"),
            unk_id: special_id("unk_token"),
            vocab_size: entries.len() as i64,
            adds_bos: bos_id >= 0 && begins_with == Some(bos_id),
            fingerprint: fingerprint(&directory.tokenizer_json, &entries, &inner),
            chat_template: directory
                .templates
                .iter()
                .find(|t| t.name == "default")
                .map_or("", |t| &t.source)
                .to_owned(),
        };
        let byte_level = ByteLevelBpe::new(&inner, &file);
        let mut plain = inner.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let templates = Templates::new(directory.templates, specials.named);
        Ok(Tokenizer { file, inner, plain, byte_level, entries, ids, templates, info })
    }

    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Adds no ids that the text does not spell. `special`: special tokens in the text become those tokens.
    pub fn encode(&self, text: &str, special: bool, out: &mut Encoded) -> Result<()> {
        out.ids.clear();
        out.begin.clear();
        out.end.clear();
        let added = if special { self.inner.get_added_vocabulary() } else { &self.plain };
        if let Some(byte_level) = &self.byte_level {
            let part = format!("{}: pre_tokenizer", self.file);
            if guarded(&part, || byte_level.encode(&self.inner, added, text, out))? {
                return Ok(());
            }
        }
        self.encode_by_library(added, text, out)?;
        let (num_ids, limit) = (out.ids.len(), MAX_IDS_PER_BYTE * (text.len() + 1));
        if num_ids > limit {
            let part = if self.inner.get_normalizer().is_some() { "normalizer" } else { "pre_tokenizer" };
            return Err(Error::invalid(format!(
                "{}: {part}: it lengthens a text of {} bytes so that it has {num_ids} ids; the limit is {limit}",
                self.file,
                text.len()
            )));
        }
        Ok(())
    }

    fn encode_by_library(&self, added: &AddedVocabulary, text: &str, out: &mut Encoded) -> Result<()> {
        let failed = |error: tokenizers::Error| Error::internal(format!("cannot encode the text: {error}"));
        let mut parts = guarded(&format!("{}: normalizer", self.file), || {
            let normalizer = self.inner.get_normalizer().map(Bounded::new);
            let parts = added.extract_and_normalize(normalizer.as_ref(), text);
            normalizer.map_or(Ok(()), |normalizer| normalizer.check(&self.file))?;
            Ok(parts)
        })?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            guarded(&format!("{}: pre_tokenizer", self.file), || {
                pre_tokenizer.pre_tokenize(&mut parts).map_err(failed)
            })?;
        }
        let model = self.inner.get_model();
        // Without an unk token, the library leaves out text that the vocabulary does not have.
        let drops = matches!(model, ModelWrapper::BPE(bpe) if bpe.unk_token.is_none());
        let unspelt = Cell::new(None);
        let too_long = Cell::new(None);
        let tokenized = guarded(&format!("{}: model", self.file), || {
            Ok(parts.tokenize(|part| {
                check_word(&self.file, part.get().len()).map_err(|error| {
                    let message = error.message.clone();
                    too_long.set(Some(error));
                    message
                })?;
                let tokens = model.tokenize(part.get())?;
                let spelt = tokens.last().map_or(0, |token| token.offsets.1);
                if drops && spelt < part.get().len() {
                    unspelt.set(part.get().chars().find(|c| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_none()));
                    return Err("a character is not in the vocabulary".into());
                }
                Ok(tokens)
            }))
        })?;
        if let Some(error) = too_long.take() {
            return Err(error);
        }
        if let Some(c) = unspelt.get() {
            return Err(Error::invalid(format!(
                "{}: the vocabulary has neither {c:?} (U+{:04X}), which is in the text, nor an unk_token; remove it \
                 from the data or use another tokenizer",
                self.file, c as u32
            )));
        }
        tokenized.map_err(failed)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::Byte).map_err(failed)?;

        out.ids.extend(encoding.get_ids().iter().map(|id| *id as i32));
        let mut last = 0;
        for (begin, end) in encoding.get_offsets() {
            let begin = floor_char(text, *begin).max(last);
            out.begin.push(begin as u64);
            out.end.push(ceil_char(text, *end).max(begin) as u64);
            last = begin;
        }
        Ok(())
    }

    /// As HF's decode with skip_special_tokens = !keep_special; nothing is cleaned up, as in HF for BPE.
    pub fn decode(&self, ids: &[i32], keep_special: bool) -> Result<Vec<u8>> {
        for id in ids {
            self.token(*id)?;
        }
        let added = self.inner.get_added_vocabulary();
        let model = self.inner.get_model();
        let tokens: Vec<String> = ids
            .iter()
            .filter(|id| keep_special || self.entries[**id as usize].0 & TOKEN_SPECIAL == 0)
            .filter_map(|id| added.simple_id_to_token(*id as u32).or_else(|| model.id_to_token(*id as u32)))
            .collect();
        let text = match self.inner.get_decoder() {
            Some(decoder) => guarded(&format!("{}: decoder", self.file), || {
                decoder.decode(tokens).map_err(|error| Error::internal(format!("cannot decode: {error}")))
            })?,
            None => tokens.join(" "),
        };
        Ok(text.into_bytes())
    }

    pub fn token(&self, id: i32) -> Result<(u32, &str)> {
        match usize::try_from(id).ok().and_then(|id| self.entries.get(id)) {
            Some((flags, text)) => Ok((*flags, text)),
            None => Err(Error {
                kind: ErrorKind::OutOfRange,
                message: format!("token id {id} is outside the vocabulary of {}", self.entries.len()),
            }),
        }
    }

    /// Returns -1 if the vocabulary has no entry with this spelling.
    pub fn id_of(&self, text: &str) -> i32 {
        self.ids.get(text).copied().unwrap_or(-1)
    }

    pub fn render(&self, chat: &Chat) -> Result<Rendered> {
        chat::render(&self.templates, &|text| self.is_added(text), chat)
    }

    /// Makes a vocabulary from texts: the files of a directory that `open` reads, each with its content.
    pub fn train(
        vocab_size: i64,
        min_frequency: u64,
        num_threads: u32,
        next: &mut dyn FnMut() -> Result<Option<String>>,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        crate::train::train(vocab_size, min_frequency, num_threads, next)
    }

    fn is_added(&self, text: &str) -> bool {
        self.ids.get(text).is_some_and(|id| self.entries[*id as usize].0 & TOKEN_ADDED != 0)
    }
}

/// Refuses a word for which the library would need too much memory.
pub(crate) fn check_word(file: &str, num_bytes: usize) -> Result<()> {
    if num_bytes <= MAX_WORD_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{file}: the text has a word of {num_bytes} bytes, which the pre_tokenizer does not divide; the limit is \
         {MAX_WORD_BYTES}; divide the word in the data, or remove it"
    )))
}

fn entries(inner: &tokenizers::Tokenizer, file: &str) -> Result<Vec<(u32, String)>> {
    let vocab = inner.get_model().get_vocab();
    let added = inner.get_added_tokens_decoder();
    let size = vocab.values().chain(added.keys()).max().map_or(0, |id| *id as usize + 1);
    // An id far above all others would make the table, and a model's embedding, huge.
    if size > 16 * (vocab.len() + added.len()) + (1 << 20) {
        return Err(Error::invalid(format!("{file}: id {} is too large for {} entries", size - 1, vocab.len())));
    }
    let mut entries = vec![(TOKEN_UNUSED, String::new()); size];
    for (text, id) in vocab {
        let entry = &mut entries[id as usize];
        if entry.0 != TOKEN_UNUSED {
            let (first, second) = if entry.1 < text { (&entry.1, &text) } else { (&text, &entry.1) };
            return Err(Error::invalid(format!("{file}: model.vocab: {first:?} and {second:?} have the same id {id}")));
        }
        *entry = (0, text);
    }
    for (id, token) in added {
        let special = if token.special { TOKEN_SPECIAL } else { 0 };
        entries[id as usize] = (TOKEN_ADDED | special, token.content);
    }
    Ok(entries)
}

/// The first id of HF's encode("x", add_special_tokens=True), if it is not one of "x" itself.
fn first_special_id(inner: &tokenizers::Tokenizer, file: &str) -> Result<Option<i32>> {
    let failed = |error| Error::invalid(format!("{file}: {error}"));
    // Part by part, so that the one that panics is named.
    guarded(&format!("{file}: normalizer"), || {
        let mut text = NormalizedString::from("x");
        inner.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(&mut text)).map_err(failed)
    })?;
    guarded(&format!("{file}: pre_tokenizer"), || inner.encode_fast("x", false).map_err(failed))?;
    let with = guarded(&format!("{file}: post_processor"), || inner.encode_fast("x", true).map_err(failed))?;
    let is_added = with.get_special_tokens_mask().first() == Some(&1);
    Ok(is_added.then(|| with.get_ids()[0] as i32))
}

fn fingerprint(tokenizer_json: &[u8], entries: &[(u32, String)], inner: &tokenizers::Tokenizer) -> String {
    let mut hash = Sha256::new();
    // The first line must change when this crate or the library makes other ids from the same files.
    hash.update(b"chassis-hf 1\n");
    hash.update(tokenizer_json);
    let added = inner.get_added_tokens_decoder();
    for (id, (flags, _)) in entries.iter().enumerate().filter(|(_, (flags, _))| flags & TOKEN_ADDED != 0) {
        let token = &added[&(id as u32)];
        let traits = (token.single_word, token.lstrip, token.rstrip, token.normalized);
        hash.update(format!("\n{id} {flags} {traits:?} {}", token.content).as_bytes());
    }
    hash.hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of characters that pipelines treat differently; the same seed gives the same text.
    fn text(seed: u64) -> String {
        let signs = [
            "a",
            "B",
            "the",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'s",
            "'",
            "1",
            "234",
            "ß",
            "é",
            "e\u{301}",
            "你",
            "好",
            "😀",
            "👨‍👩‍👧",
            "\u{a0}",
            "\u{2028}",
            "\0",
            ".",
            "!?",
            "<",
            "<|im_end|>",
            "<think>",
            "<|extra|>",
            "𝔘",
            "ṩ",
            "نص",
            "हि",
            "\u{200b}",
            "_",
            "x = y;",
        ];
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        (0..draw(40)).map(|_| signs[draw(signs.len() as u64) as usize]).collect()
    }

    #[test]
    fn the_shorter_way_of_byte_level_equals_that_of_the_library() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        assert!(Tokenizer::open(&golden.join("metaspace")).unwrap().byte_level.is_none());
        let tokenizer = Tokenizer::open(&golden.join("byte_level")).unwrap();
        assert!(tokenizer.byte_level.is_some());
        let mut short = Encoded::default();
        for seed in 0..3000 {
            let text = text(seed);
            for (special, added) in [(true, tokenizer.inner.get_added_vocabulary()), (false, &tokenizer.plain)] {
                tokenizer.encode(&text, special, &mut short).unwrap();
                let mut long = Encoded::default();
                tokenizer.encode_by_library(added, &text, &mut long).unwrap();
                assert_eq!(short, long, "{text:?} special {special}");
            }
        }
    }
}
