//! Methods of Python's str and dict that chat templates call; for the others, minijinja's own imitations are used.
use crate::limits::{charge, charge_deep, charge_value, charge_work, BYTES_PER_VALUE, WORK_PER_CHAR};
use crate::python::{is_space, to_str};
use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

pub(crate) fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    charge_value(value)?;
    for text in args.iter().chain([value]).filter_map(Value::as_str) {
        charge_work(text.len().saturating_mul(WORK_PER_CHAR))?;
    }
    let called = match value.as_str() {
        Some(text) => of_str(text, method, args)?,
        None if value.kind() == ValueKind::Map && method == "copy" => Some(value.clone()),
        None => None,
    };
    called.map_or_else(|| pycompat::unknown_method_callback(state, value, method, args), Ok)
}

fn of_str(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, method != "rstrip", method != "lstrip", chars))
        }
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let at = if method == "partition" { text.find(separator) } else { text.rfind(separator) };
            let parts = match at {
                Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(parts.map(Value::from).to_vec())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "count" => {
            let (what, begin, end): (&str, Option<usize>, Option<usize>) = from_args(args)?;
            let at = |place: Option<usize>, none: usize| {
                place.map_or(none, |n| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at))
            };
            let (begin, end) = (at(begin, 0), at(end, text.len()));
            // As in Python, an empty text is found before each character and at the end.
            Value::from(text.get(begin..end).map_or(0, |part| part.matches(what).count()))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, begin): (&str, Option<usize>) = from_args(args)?;
            let skipped = text.char_indices().nth(begin.unwrap_or(0)).map_or(text.len(), |(at, _)| at);
            let tail = &text[skipped..];
            let at = if method.starts_with('r') { tail.rfind(what) } else { tail.find(what) };
            match at {
                Some(at) => Value::from(text[..skipped + at].chars().count()),
                None if method.ends_with("index") => {
                    return Err(Error::new(ErrorKind::InvalidOperation, "substring not found"))
                }
                None => Value::from(-1),
            }
        }
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            Value::from(join(values.try_iter()?.map(Ok), text)?)
        }
        "isdigit" | "isnumeric" | "isdecimal" => all(text, args, char::is_numeric)?,
        "isalpha" => all(text, args, char::is_alphabetic)?,
        "isalnum" => all(text, args, char::is_alphanumeric)?,
        "isspace" => all(text, args, is_space)?,
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            Value::from(replace(text, from, to, count.unwrap_or(-1))?)
        }
        "format" => {
            check_format(text, args)?;
            return Ok(None);
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            lines(text, keep_ends.unwrap_or(false))?
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            let missing = width.min(10_000).saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let missing = fill.unwrap_or(" ").repeat(width.min(10_000).saturating_sub(text.chars().count()));
            Value::from(if method == "ljust" { format!("{text}{missing}") } else { format!("{missing}{text}") })
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// The texts of values with a separator between them.
pub(crate) fn join(values: impl Iterator<Item = Result<Value, Error>>, separator: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (i, value) in values.enumerate() {
        out.push_str(if i == 0 { "" } else { separator });
        let text = to_str(&value?)?;
        charge(text.len() + separator.len())?;
        out.push_str(&text);
        if out.len() > MAX_JOINED_BYTES {
            charge(out.len())?;
        }
    }
    Ok(out)
}

/// Above this, the length of a text is checked while it is made.
const MAX_JOINED_BYTES: usize = 64 << 20;

const WORK_PER_MATCH: usize = 32;

/// Replaces the first `count` occurrences of `from`, or all if it is negative.
pub(crate) fn replace(text: &str, from: &str, to: &str, count: i64) -> Result<String, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(from).take(count).count();
    charge((text.len() + found.saturating_mul(to.len())).saturating_sub(found * from.len()))?;
    charge_work(found.saturating_mul(WORK_PER_MATCH))?;
    Ok(text.replacen(from, to, count))
}

/// Widths and precisions in format strings can make long texts from short ones.
pub(crate) fn check_format(format: &str, args: &[Value]) -> Result<(), Error> {
    let longest = format.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if longest > 4 || format.contains("%*") || format.contains(".*") {
        return Err(Error::new(ErrorKind::InvalidOperation, "format: a width or precision of more than 4 digits"));
    }
    let num_fields = format.matches(['%', '{']).count();
    let mut longest_arg = 0;
    for arg in args {
        longest_arg = charge_deep(arg)?.max(longest_arg);
    }
    charge(num_fields.saturating_mul(longest_arg).saturating_add(format.len()))?;
    if longest > 2 {
        charge(num_fields.saturating_mul(10_000))?;
    }
    Ok(())
}

pub(crate) fn strip<'a>(text: &'a str, left: bool, right: bool, chars: Option<&str>) -> &'a str {
    let stripped = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(stripped) } else { text };
    if right {
        text.trim_end_matches(stripped)
    } else {
        text
    }
}

fn all(text: &str, args: &[Value], is: impl Fn(char) -> bool) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(!text.is_empty() && text.chars().all(is)))
}

/// split(sep=None, maxsplit=-1), and rsplit.
fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (given, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
    let argument = |i: usize, name: &str| match given.get(i) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let separator = argument(0, "sep")?.filter(|value| !value.is_none());
    let most = argument(1, "maxsplit")?.map_or(Ok(-1), i64::try_from)?;
    kwargs.assert_all_used()?;
    let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
    let num_parts = match separator.as_ref().and_then(Value::as_str) {
        None | Some("") => text.split_whitespace().take(most).count(),
        Some(separator) => text.matches(separator).take(most).count(),
    };
    charge((num_parts + 1).saturating_mul(BYTES_PER_VALUE))?;
    let mut parts: Vec<&str> = match &separator {
        Some(separator) => {
            let separator = separator
                .as_str()
                .filter(|separator| !separator.is_empty())
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "empty separator"))?;
            if from_right {
                text.rsplitn(most + 1, separator).collect()
            } else {
                text.splitn(most + 1, separator).collect()
            }
        }
        None => words(text, most, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()))
}

/// Splits at white space at most `most` times. From the right, the parts are in reverse order.
fn words(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_space);
    while !rest.is_empty() {
        let at = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = at.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        if from_right {
            let word = rest[at..].trim_start_matches(is_space);
            parts.push(word);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            parts.push(&rest[..at]);
            rest = rest[at..].trim_start_matches(is_space);
        }
    }
    parts
}

fn lines(text: &str, keep_ends: bool) -> Result<Value, Error> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    charge(text.matches(ends).count().saturating_mul(BYTES_PER_VALUE))?;
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.find(ends).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            None => at,
            Some('\r') if rest[at..].starts_with("\r\n") => at + 2,
            Some(c) => at + c.len_utf8(),
        };
        lines.push(Value::from(&rest[..if keep_ends { end } else { at }]));
        rest = &rest[end..];
    }
    Ok(Value::from(lines))
}
