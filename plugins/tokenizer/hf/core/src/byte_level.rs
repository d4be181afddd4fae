//! The usual pipeline of byte-level BPE, directly on the bytes of the text. Rationale: the library keeps an alignment
//! of every byte through every step, which takes most of its time. Regexes and merges are the library's, and the
//! results are the same.
use crate::error::{Error, Result};
use crate::tokenizer::{check_word, Encoded};
use ahash::AHashMap;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::tokenizer::Model;
use tokenizers::utils::SysRegex;
use tokenizers::{
    AddedVocabulary, OffsetReferential, OffsetType, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
};
use unicode_normalization_alignments::{is_nfc_quick, IsNormalized};

/// The regex of the pre-tokenizer ByteLevel, from GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const MAX_CACHED_WORDS: usize = 1 << 16;
const MAX_CACHED_BYTES: usize = 128;
const MAX_CACHES: usize = 4;

/// Ids of a word, each with the byte at which it ends.
type Word = Box<[(i32, u32)]>;

thread_local! {
    /// A cache of words by instance; one per thread, so that threads never wait for each other.
    static WORDS: RefCell<AHashMap<u64, AHashMap<Box<str>, Word>>> = RefCell::default();
}

pub(crate) struct ByteLevelBpe {
    file: String,
    instance: u64,
    splits: Vec<Split>,
    needs_nfc: bool,
    letters: [char; 256],      // as byte-level vocabularies spell bytes
    begins_added: [bool; 256], // first bytes of added tokens
}

struct Split {
    regex: SysRegex,
    keeps_rest: bool, // text between matches is a word, too
}

impl ByteLevelBpe {
    /// Returns None if the pipeline has any other step.
    pub(crate) fn new(tokenizer: &Tokenizer, file: &str) -> Option<ByteLevelBpe> {
        let needs_nfc = is_nfc(tokenizer.get_normalizer())?;
        let splits = splits(tokenizer.get_pre_tokenizer()?)?;
        let mut begins_added = [false; 256];
        for token in tokenizer.get_added_tokens_decoder().values() {
            // Spaces before such a token belong to it, so its first byte would not reveal it.
            if token.lstrip {
                return None;
            }
            begins_added[usize::from(*token.content.as_bytes().first()?)] = true;
        }
        static NUM_INSTANCES: AtomicU64 = AtomicU64::new(0);
        let instance = NUM_INSTANCES.fetch_add(1, Ordering::Relaxed);
        let file = file.to_owned();
        Some(ByteLevelBpe { file, instance, splits, needs_nfc, letters: letters(), begins_added })
    }

    /// Returns false if the text needs the library; `out` is then unchanged.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        added: &AddedVocabulary,
        text: &str,
        out: &mut Encoded,
    ) -> Result<bool> {
        if self.needs_nfc && !text.is_ascii() && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            return Ok(false);
        }
        WORDS.with_borrow_mut(|caches| {
            if caches.len() >= MAX_CACHES && !caches.contains_key(&self.instance) {
                caches.clear();
            }
            let words = caches.entry(self.instance).or_default();
            let mut run = Run { pipeline: self, tokenizer, text, words, out };
            if !text.bytes().any(|byte| self.begins_added[usize::from(byte)]) {
                run.split(0, 0, text.len())?;
                return Ok(true);
            }
            let parts = added.extract_and_normalize(None::<&NormalizerWrapper>, text);
            for (_, (begin, end), tokens) in parts.get_splits(OffsetReferential::Original, OffsetType::Byte) {
                match tokens {
                    Some(tokens) => tokens.iter().for_each(|token| run.push(token.id as i32, begin, end)),
                    None => run.split(0, begin, end)?,
                }
            }
            Ok(true)
        })
    }
}

struct Run<'a> {
    pipeline: &'a ByteLevelBpe,
    tokenizer: &'a Tokenizer,
    text: &'a str,
    words: &'a mut AHashMap<Box<str>, Word>,
    out: &'a mut Encoded,
}

impl Run<'_> {
    fn push(&mut self, id: i32, begin: usize, end: usize) {
        self.out.ids.push(id);
        self.out.begin.push(begin as u64);
        self.out.end.push(end as u64);
    }

    /// Applies the splits from number `i` on to a part of the text.
    fn split(&mut self, i: usize, begin: usize, end: usize) -> Result<()> {
        if begin == end {
            return Ok(());
        }
        let pipeline = self.pipeline;
        let Some(split) = pipeline.splits.get(i) else { return self.word(begin, end) };
        let mut rest = begin;
        for (from, to) in split.regex.find_iter(&self.text[begin..end]) {
            if split.keeps_rest {
                self.split(i + 1, rest, begin + from)?;
            }
            self.split(i + 1, begin + from, begin + to)?;
            rest = begin + to;
        }
        if split.keeps_rest {
            self.split(i + 1, rest, end)?;
        }
        Ok(())
    }

    fn word(&mut self, begin: usize, end: usize) -> Result<()> {
        let text = self.text;
        let word = &text[begin..end];
        check_word(&self.pipeline.file, word.len())?;
        if !self.words.contains_key(word) {
            let ids = self.pipeline.tokenize(self.tokenizer, word)?;
            if word.len() > MAX_CACHED_BYTES || self.words.len() >= MAX_CACHED_WORDS {
                self.push_word(&ids, begin);
                return Ok(());
            }
            self.words.insert(word.into(), ids);
        }
        let Run { words, out, .. } = self;
        push_word(text, &words[word], begin, out);
        Ok(())
    }

    fn push_word(&mut self, ids: &[(i32, u32)], begin: usize) {
        push_word(self.text, ids, begin, self.out);
    }
}

fn push_word(text: &str, ids: &[(i32, u32)], begin: usize, out: &mut Encoded) {
    let mut last = begin;
    for (id, end) in ids {
        let end = begin + *end as usize;
        out.ids.push(*id);
        out.begin.push(floor_char(text, last) as u64);
        out.end.push(ceil_char(text, end) as u64);
        last = end;
    }
}

impl ByteLevelBpe {
    fn tokenize(&self, tokenizer: &Tokenizer, word: &str) -> Result<Word> {
        let spelt: String = word.bytes().map(|byte| self.letters[usize::from(byte)]).collect();
        let tokens = tokenizer.get_model().tokenize(&spelt);
        let tokens = tokens.map_err(|error| Error::internal(format!("cannot encode the text: {error}")))?;
        let mut end = 0;
        let mut ids = Vec::with_capacity(tokens.len());
        for token in tokens {
            // One letter stands for one byte.
            end += spelt[token.offsets.0..token.offsets.1].chars().count() as u32;
            ids.push((token.id as i32, end));
        }
        if (end as usize) < word.len() {
            return Err(self.unspelt(tokenizer, word));
        }
        Ok(ids.into_boxed_slice())
    }

    fn unspelt(&self, tokenizer: &Tokenizer, word: &str) -> Error {
        let model = tokenizer.get_model();
        let has = |byte: u8| model.token_to_id(self.letters[usize::from(byte)].encode_utf8(&mut [0; 4])).is_some();
        let missing =
            word.char_indices().find(|(at, c)| !word.as_bytes()[*at..at + c.len_utf8()].iter().all(|b| has(*b)));
        let c = missing.map_or(char::REPLACEMENT_CHARACTER, |(_, c)| c);
        Error::invalid(format!(
            "{}: the vocabulary lacks bytes of {c:?} (U+{:04X}), which is in the text, and it has no unk_token; remove \
             it from the data or use another tokenizer",
            self.file, c as u32
        ))
    }
}

/// True if the normalizer is NFC, false if there is none; None if there is any other.
fn is_nfc(normalizer: Option<&NormalizerWrapper>) -> Option<bool> {
    match normalizer {
        None => Some(false),
        Some(NormalizerWrapper::NFC(_)) => Some(true),
        Some(NormalizerWrapper::Sequence(sequence)) => match sequence.as_ref() {
            [] => Some(false),
            [only] => is_nfc(Some(only)),
            _ => None,
        },
        Some(_) => None,
    }
}

fn splits(pre_tokenizer: &PreTokenizerWrapper) -> Option<Vec<Split>> {
    let steps = match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
        only => std::slice::from_ref(only),
    };
    let (PreTokenizerWrapper::ByteLevel(last), before) = steps.split_last()? else { return None };
    if last.add_prefix_space {
        return None;
    }
    let mut splits = Vec::new();
    for step in before {
        let PreTokenizerWrapper::Split(split) = step else { return None };
        let keeps_rest = match (split.behavior, split.invert) {
            (SplitDelimiterBehavior::Isolated, false) => true,
            (SplitDelimiterBehavior::Removed, true) => false,
            _ => return None,
        };
        splits.push(Split { regex: split.clone().regex, keeps_rest });
    }
    if last.use_regex {
        splits.push(Split { regex: SysRegex::new(GPT2).ok()?, keeps_rest: true });
    }
    Some(splits)
}

/// Printable bytes of Latin-1 as they are, others from U+0100 on.
fn letters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let letter = if printable { byte as u32 } else { next };
        next += u32::from(!printable);
        char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

pub(crate) fn floor_char(text: &str, mut byte: usize) -> usize {
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

pub(crate) fn ceil_char(text: &str, mut byte: usize) -> usize {
    byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte += 1;
    }
    byte
}
