//! Integers of more than 64 bits, which JSON allows and serde_json reads as floats. They pass through it as texts with
//! a mark in front, and templates get them with all digits, as in Python.
use minijinja::value::{Object, ObjectRepr, Value};
use std::fmt;
use std::sync::Arc;

const MARK: char = '\u{fdd0}'; // Unicode reserves it for uses inside a program

/// An integer of more than 128 bits, which the template engine lacks.
#[derive(Debug)]
pub(crate) struct WideInteger(pub(crate) String);

impl Object for WideInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Texts that have the mark themselves are left as they are.
pub(crate) fn has_mark(json: &str) -> bool {
    json.contains(MARK) || json.to_ascii_lowercase().contains("\\ufdd0")
}

/// The JSON with each such integer as a marked text; None: there is none.
pub(crate) fn marked(json: &str) -> Option<String> {
    let bytes = json.as_bytes();
    let mut out = String::new();
    let (mut copied, mut i) = (0, 0);
    while i < bytes.len() {
        match bytes[i] {
            b'"' => {
                i += 1;
                while i < bytes.len() && bytes[i] != b'"' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                i += 1;
            }
            b'-' | b'0'..=b'9' => {
                let begin = i;
                while i < bytes.len() && matches!(bytes[i], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9') {
                    i += 1;
                }
                let number = &json[begin..i];
                let is_integer = number.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
                if is_integer && number.len() > 18 && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    out.push_str(&json[copied..begin]);
                    out.extend(['"', MARK]);
                    out.push_str(number);
                    out.push('"');
                    copied = i;
                }
            }
            _ => i += 1,
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(&json[copied..]);
    Some(out)
}

/// The value with marked texts as integers.
pub(crate) fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::String(text) => match text.strip_prefix(MARK) {
            None => Value::from(text.as_str()),
            Some(digits) => digits
                .parse::<i128>()
                .map(Value::from)
                .unwrap_or_else(|_| Value::from_object(WideInteger(digits.to_owned()))),
        },
        serde_json::Value::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        serde_json::Value::Object(members) => {
            members.iter().map(|(key, member)| (key.as_str(), to_value(member))).collect()
        }
        other => Value::from_serialize(other),
    }
}
