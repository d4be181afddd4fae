//! Special and added tokens as transformers 5 combines them: those of tokenizer.json, then `added_tokens_decoder` of
//! tokenizer_config.json (or, without it, special_tokens_map.json and added_tokens.json), then named special tokens
//! that are still missing.
use crate::directory::Directory;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::collections::HashSet;
use tokenizers::{AddedToken, Tokenizer};

const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub(crate) struct SpecialTokens {
    /// Variables of templates: bos_token, eos_token, image_token, …, as their texts.
    pub(crate) named: Vec<(String, String)>,
}

impl SpecialTokens {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(key, _)| key == name).map(|(_, text)| text.as_str())
    }
}

/// Adds to `tokenizer` the tokens that the other files of the directory add to those of tokenizer.json.
pub(crate) fn add(directory: &Directory, tokenizer: &mut Tokenizer) -> Result<SpecialTokens> {
    let mut config = directory.config.clone();
    let mut added: Vec<(u32, AddedToken)> = Vec::new();
    let config_file = directory.file("tokenizer_config.json");
    check_types(&config_file, &config)?;
    check_types(&directory.file("special_tokens_map.json"), &directory.special_tokens_map)?;
    if let Some(Value::Object(decoder)) = config.get("added_tokens_decoder") {
        for (id, token) in decoder {
            let id =
                id.parse().map_err(|_| wrong(&config_file, &format!("added_tokens_decoder: '{id}' is not an id")))?;
            let token = added_token(token)
                .ok_or_else(|| wrong(&config_file, &format!("added_tokens_decoder[\"{id}\"] is not a token")))?;
            added.push((id, token));
        }
    } else {
        config.extend(directory.special_tokens_map.clone());
        let specials: HashSet<String> = all_special(&config).into_iter().map(|token| token.content).collect();
        for (text, id) in &directory.added_tokens {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| wrong(&directory.file("added_tokens.json"), &format!("'{text}' has no id")))?;
            added.push((id, AddedToken::from(text.as_str(), specials.contains(text))));
        }
    }
    added.sort_by_key(|(id, _)| *id);
    let named = named(&config);
    add_with_ids(&config_file, tokenizer, added, &named)?;

    // Named and further special tokens that no list of added tokens has.
    let known: HashSet<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let missing: Vec<AddedToken> =
        all_special(&config).into_iter().filter(|token| !known.contains(&token.content)).collect();
    tokenizer.add_tokens(missing).map_err(|error| wrong(&config_file, &error.to_string()))?;
    Ok(SpecialTokens { named })
}

fn add_with_ids(
    file: &str,
    tokenizer: &mut Tokenizer,
    added: Vec<(u32, AddedToken)>,
    named: &[(String, String)],
) -> Result<()> {
    let present = tokenizer.get_added_tokens_decoder();
    let contradiction = |text: &str, id: u32, got: u32| {
        wrong(
            file,
            &format!(
                "added token '{text}' should have id {id}, but with tokenizer.json it gets {got}; the files do not \
                 belong together"
            ),
        )
    };
    let mut ids = Vec::new();
    let mut tokens = Vec::new();
    for (id, mut token) in added {
        if let Some((got, _)) = present.iter().find(|(_, other)| **other == token) {
            if *got != id {
                return Err(contradiction(&token.content, id, *got));
            }
        } else {
            token.special |= named.iter().any(|(_, text)| *text == token.content);
            ids.push(id);
            tokens.push(token);
        }
    }
    tokenizer.add_tokens(tokens.clone()).map_err(|error| wrong(file, &error.to_string()))?;
    for (id, token) in ids.into_iter().zip(tokens) {
        if let Some(got) = tokenizer.token_to_id(&token.content).filter(|got| *got != id) {
            return Err(contradiction(&token.content, id, got));
        }
    }
    Ok(())
}

/// Checks the types of the keys that are read here; null counts as absent.
fn check_types(file: &str, config: &Map<String, Value>) -> Result<()> {
    for (name, value) in config.iter().filter(|(_, value)| !value.is_null()) {
        let expected = match name.as_str() {
            "added_tokens_decoder" if !value.is_object() => "an object of tokens by id",
            "extra_special_tokens" if !value.is_object() && !value.is_array() => "an object or a list of tokens",
            "additional_special_tokens" if !value.is_array() => "a list of tokens",
            "add_bos_token" | "add_eos_token" if !value.is_boolean() => "true or false",
            name if NAMED.contains(&name) && added_token(value).is_none() => {
                "a token: a text, or an object with content"
            }
            _ => continue,
        };
        return Err(wrong(file, &format!("{name} is {}, not {expected}", shortened(value))));
    }
    Ok(())
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn wrong(file: &str, what: &str) -> Error {
    Error::invalid(format!("{file}: {what}"))
}

/// A token as a text, which is a special one, or as an object with its flags.
fn added_token(value: &Value) -> Option<AddedToken> {
    if let Some(text) = value.as_str() {
        return Some(AddedToken::from(text, true));
    }
    let content = value.get("content")?.as_str()?;
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    let token = AddedToken::from(content, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false));
    Some(token.normalized(flag("normalized").unwrap_or(!special)))
}

fn text_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Named tokens with their texts: those that HF knows, and further ones such as image_token.
fn named(config: &Map<String, Value>) -> Vec<(String, String)> {
    let mut named = Vec::new();
    let mut add = |name: &str, value: &Value| {
        if let Some(text) = text_of(value) {
            named.push((name.to_owned(), text.to_owned()));
        }
    };
    for name in NAMED {
        config.get(name).into_iter().for_each(|value| add(name, value));
    }
    for (name, value) in config {
        if name.ends_with("_token") && !NAMED.contains(&name.as_str()) && (value.is_string() || value.is_object()) {
            add(name, value);
        }
    }
    if let Some(Value::Object(extra)) = config.get("extra_special_tokens") {
        extra.iter().for_each(|(name, value)| add(name, value));
    }
    named
}

/// All special tokens of the configuration, the named ones first, then lists.
fn all_special(config: &Map<String, Value>) -> Vec<AddedToken> {
    let mut all: Vec<AddedToken> = Vec::new();
    let mut add = |value: &Value| {
        if let Some(mut token) = added_token(value).filter(|token| !token.content.is_empty()) {
            token.special = true;
            if !all.iter().any(|other| other.content == token.content) {
                all.push(token);
            }
        }
    };
    NAMED.iter().filter_map(|name| config.get(*name)).for_each(&mut add);
    for (name, value) in config {
        if name.ends_with("_token") && !NAMED.contains(&name.as_str()) {
            add(value);
        }
    }
    match config.get("extra_special_tokens") {
        Some(Value::Object(extra)) => extra.values().for_each(&mut add),
        Some(Value::Array(extra)) => extra.iter().for_each(&mut add),
        _ => {}
    }
    if let Some(Value::Array(extra)) = config.get("additional_special_tokens") {
        extra.iter().for_each(&mut add);
    }
    all
}
