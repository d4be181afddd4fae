//! Values formatted as by Python's str() and repr(), and Python's definition of white space.
use crate::limits::{charge, charge_value, check_depth, check_size};
use crate::marks::FIRST_MARK;
use minijinja::value::{Value, ValueKind};
use minijinja::Error;

/// str(value): what `{{ value }}` prints.
pub(crate) fn to_str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => repr(value),
    }
}

pub(crate) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(value, 0, &mut out)?;
    Ok(out)
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check_depth(depth)?;
    let begin = out.len();
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            charge_value(value)?;
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_repr(&item, depth + 1, out)?;
                check_size(out.len() - begin)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    charge(out.len() - begin)
}

pub(crate) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// repr(float): the shortest digits that read back, with an exponent outside 1e-4 … 1e16.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        return format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&match c as u32 {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
}

/// str.isprintable() of one character, in the Unicode version of Rust: neither a control, format or private character,
/// nor a separator other than ' ', nor unassigned. Marks count as printable, since they are taken out of the result.
fn is_printable(c: char) -> bool {
    if c.is_ascii() || c >= FIRST_MARK {
        return c != '\x7f' && c >= ' ';
    }
    // Debug escapes the same characters; after a letter, it leaves combining marks unchanged.
    let text = ['a', c].iter().collect::<String>();
    text.escape_debug().count() == 2
}

/// str.isspace() of one character: Unicode's White_Space and the four separators of ASCII.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelt_as_python_spells_them() {
        let spelt = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (123456789.125, "123456789.125"),
            (-0.0, "-0.0"),
            (5e-324, "5e-324"),
            (1.2345678901234567e22, "1.2345678901234568e+22"),
        ];
        for (value, expected) in spelt {
            assert_eq!(float(value), expected);
        }
    }

    #[test]
    fn containers_are_spelt_as_python_spells_them() {
        crate::limits::begin_rendering(0);
        let value: serde_json::Value =
            serde_json::from_str(r#"{"a": [true, null, 1, 1.0, "it's", "\"", "'\"\n"], "ü": {}}"#).unwrap();
        let expected = r#"{'a': [True, None, 1, 1.0, "it's", '"', '\'"\n'], 'ü': {}}"#;
        assert_eq!(to_str(&Value::from_serialize(&value)).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_printed_is_escaped_as_in_python() {
        let text =
            "a\u{0}\u{7f}\u{85}\u{a0}\u{ad}\u{301}e\u{301}\u{600}\u{200b}\u{2028}\u{3000}\u{feff}\u{e000}\u{1f600}\
            \u{e0001}ü中";
        let expected = "'a\\x00\\x7f\\x85\\xa0\\xad\u{301}e\u{301}\\u0600\\u200b\\u2028\\u3000\\ufeff\\ue000\u{1f600}\
            \\U000e0001ü中'";
        let mut spelt = String::new();
        repr_str(text, &mut spelt);
        assert_eq!(spelt, expected);
    }
}
