//! Trains a byte-level BPE vocabulary on texts and makes the files of an HF tokenizer. Equal texts give equal files,
//! with any number of threads.
use crate::byte_level::floor_char;
use crate::error::{Error, Result};
use ahash::AHashMap;
use compact_str::CompactString;
use rayon::prelude::*;
use serde_json::{json, Value};
use tokenizers::models::bpe::{BpeTrainer, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::PreTokenizer;
use tokenizers::{
    AddedToken, NormalizerWrapper, OffsetReferential, OffsetType, PostProcessorWrapper, PreTokenizedString,
    PreTokenizerWrapper, SplitDelimiterBehavior, TokenizerBuilder,
};

/// The words of Llama 3 and GPT-4: contractions, letters, up to three digits, other signs, line ends, white space.
const WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const END_OF_TEXT: &str = "<|endoftext|>";
const PAD: &str = "<|pad|>";
const SPECIALS: [&str; 4] = [END_OF_TEXT, PAD, "<|im_start|>", "<|im_end|>"];
const MIN_VOCAB: i64 = 256 + SPECIALS.len() as i64;
const MAX_VOCAB: i64 = 1 << 24;

/// ChatML, with tools, calls and reasoning as the built-in template "chatml" of the host writes them.
const CHAT_TEMPLATE: &str = r#"{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.last_user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\n\n' }}
    {%- endif %}
    {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' }}
    {{- '<tool_call></tool_call> XML tags:\n<tool_call>\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
            {%- if message['reasoning_content'] and (loop.index0 > ns.last_user or preserve_thinking) %}
                {{- '<think>\n' + message['reasoning_content'] + '\n</think>\n\n' }}
            {%- endif %}
            {%- if message['content'] %}
                {{- message['content'] }}
            {%- endif %}
            {%- for tool_call in message['tool_calls'] or [] %}
                {%- set call = tool_call['function'] or tool_call %}
                {%- if message['content'] or not loop.first %}
                    {{- '\n' }}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' + call['name'] + '", "arguments": ' }}
                {{- call['arguments'] if call['arguments'] is string else call['arguments'] | tojson }}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- elif message['role'] == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message['content'] + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif not (tools and loop.first and message['role'] == 'system') %}
        {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

/// Bytes of texts that are read before their words are counted on all threads.
const BATCH_BYTES: usize = 16 << 20;
const PART_BYTES: usize = 64 << 10;
const MAX_PART_BYTES: usize = 1 << 20;
/// A longer word counts as several, since the library's trainer moves the rest of a word with every merge in it.
const MAX_WORD_LETTERS: usize = 256;

type Counts = AHashMap<CompactString, u64>;

/// If the texts have too few pairs, the vocabulary is smaller than `vocab_size`.
pub(crate) fn train(
    vocab_size: i64,
    min_frequency: u64,
    num_threads: u32,
    next: &mut dyn FnMut() -> Result<Option<String>>,
) -> Result<Vec<(String, Vec<u8>)>> {
    if !(MIN_VOCAB..=MAX_VOCAB).contains(&vocab_size) {
        return Err(Error::invalid(format!(
            "a vocabulary of {vocab_size} tokens: at least {MIN_VOCAB} are needed (256 bytes and {} special tokens), \
             and at most {MAX_VOCAB} can be made",
            SPECIALS.len()
        )));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads.max(1) as usize).build().map_err(internal)?;
    let words = Words::new()?;
    let mut counts = Counts::new();
    let mut batch: Vec<String> = Vec::new();
    let mut batch_bytes = 0;
    loop {
        let text = next()?;
        let is_end = text.is_none();
        if let Some(text) = text {
            batch_bytes += text.len();
            batch.push(text);
        }
        if is_end || batch_bytes >= BATCH_BYTES {
            words.count(&pool, &batch, &mut counts)?;
            batch.clear();
            batch_bytes = 0;
        }
        if is_end {
            break;
        }
    }
    if counts.is_empty() {
        return Err(Error::invalid("there is no text to make a vocabulary from"));
    }

    let specials: Vec<AddedToken> = SPECIALS.iter().map(|text| AddedToken::from(*text, true)).collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab_size as usize)
        .min_frequency(min_frequency)
        .special_tokens(specials.clone())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let mut model = BPE::default();
    pool.install(|| trainer.do_train(&counts, &mut model)).map_err(internal)?;
    files(model, specials, words.pre_tokenizer)
}

fn internal(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("cannot make the vocabulary: {error}"))
}

struct Words {
    pre_tokenizer: Sequence,
}

impl Words {
    fn new() -> Result<Words> {
        let split = Split::new(SplitPattern::Regex(WORDS.to_owned()), SplitDelimiterBehavior::Isolated, false);
        let byte_level = ByteLevel::new(false, true, false);
        Ok(Words { pre_tokenizer: Sequence::new(vec![split.map_err(internal)?.into(), byte_level.into()]) })
    }

    fn count(&self, pool: &rayon::ThreadPool, batch: &[String], counts: &mut Counts) -> Result<()> {
        let parts: Vec<&str> = batch.iter().flat_map(|text| parts(text)).collect();
        let counted = pool.install(|| {
            let each =
                parts.par_iter().with_min_len(16).try_fold(Counts::new, |counts, part| self.count_part(part, counts));
            each.try_reduce(Counts::new, |a, b| {
                let (mut more, fewer) = if a.len() < b.len() { (b, a) } else { (a, b) };
                fewer.into_iter().for_each(|(word, count)| *more.entry(word).or_default() += count);
                Ok(more)
            })
        })?;
        counted.into_iter().for_each(|(word, count)| *counts.entry(word).or_default() += count);
        Ok(())
    }

    fn count_part(&self, part: &str, mut counts: Counts) -> Result<Counts> {
        let mut split = PreTokenizedString::from(part);
        self.pre_tokenizer.pre_tokenize(&mut split).map_err(internal)?;
        let words = split.get_splits(OffsetReferential::Original, OffsetType::None);
        for word in words.into_iter().flat_map(|(word, _, _)| pieces(word)) {
            match counts.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    counts.insert(CompactString::from(word), 1);
                }
            }
        }
        Ok(counts)
    }
}

/// Parts of a long text, cut where a word ends anyway: between a line end and a character that is not white space, or
/// before a space between two such characters. A text without such places is cut after MAX_PART_BYTES.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let is_text = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace());
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_cut = |at: &usize| {
            let before = rest[..*at].chars().next_back();
            let mut behind = rest[*at..].chars();
            match behind.next() {
                Some(' ') => is_text(before) && is_text(behind.next()),
                next => before == Some('\n') && is_text(next),
            }
        };
        let limit = rest.len().min(MAX_PART_BYTES);
        let mut places = (PART_BYTES..limit).filter(|at| rest.is_char_boundary(*at));
        let end = places.find(is_cut).unwrap_or_else(|| floor_char(rest, limit));
        let (part, behind) = rest.split_at(end);
        rest = behind;
        Some(part)
    })
}

/// A word in pieces of at most MAX_WORD_LETTERS letters.
fn pieces(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = match rest.len() {
            0..=MAX_WORD_LETTERS => rest.len(),
            _ => rest.char_indices().nth(MAX_WORD_LETTERS).map_or(rest.len(), |(at, _)| at),
        };
        let (piece, behind) = rest.split_at(end);
        rest = behind;
        Some(piece)
    })
}

fn files(model: BPE, specials: Vec<AddedToken>, pre_tokenizer: Sequence) -> Result<Vec<(String, Vec<u8>)>> {
    let built = TokenizerBuilder::<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, ByteLevel>::new()
        .with_model(model)
        .with_pre_tokenizer(Some(pre_tokenizer.into()))
        .with_decoder(Some(ByteLevel::default()))
        .build();
    let mut tokenizer = built.map_err(internal)?;
    tokenizer.add_special_tokens(specials.iter().cloned()).map_err(internal)?;
    let tokenizer_json = tokenizer.to_string(true).map_err(internal)?;

    let decoder: serde_json::Map<String, Value> = specials
        .iter()
        .map(|token| {
            let id = tokenizer.token_to_id(&token.content).unwrap_or_default();
            (id.to_string(), serde_json::to_value(token).unwrap_or_default())
        })
        .collect();
    let config = json!({
        "added_tokens_decoder": decoder,
        "bos_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": false,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    });
    // Texts end in one token, the turns of the chat template in another; generation stops at both.
    let stop: Vec<u32> = [END_OF_TEXT, "<|im_end|>"].iter().filter_map(|token| tokenizer.token_to_id(token)).collect();
    let generation = json!({"eos_token_id": stop});
    let map = json!({"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": PAD});
    let pretty = |value: &Value| serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(internal);
    Ok(vec![
        ("tokenizer.json".to_owned(), tokenizer_json.into_bytes()),
        ("tokenizer_config.json".to_owned(), pretty(&config)?.into_bytes()),
        ("special_tokens_map.json".to_owned(), pretty(&map)?.into_bytes()),
        ("generation_config.json".to_owned(), pretty(&generation)?.into_bytes()),
    ])
}
