//! Python's json.dumps, for the filter `tojson` of chat templates.
use crate::limits::{charge, charge_chars, charge_value};
use crate::python;
use crate::wide::WideInteger;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Output is counted in steps of this many bytes.
const CHARGED: usize = 1 << 20;

struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)
pub(crate) fn tojson(value: &Value, args: &[Value], kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes at most 4 arguments"));
    }
    let mut given: [Option<Value>; 4] = Default::default();
    for (i, name) in names.iter().enumerate() {
        given[i] = args.get(i).cloned().or(kwargs.get::<Option<Value>>(name)?);
    }
    kwargs.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = given;
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = match indent.filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        None => None,
        Some(indent) => match (indent.as_str(), i64::try_from(indent.clone())) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Ok(width)) => Some(" ".repeat(width.clamp(0, 1000) as usize)),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "indent is neither a number nor a text")),
        },
    };
    let mut item_separator = if indent.is_some() { "," } else { ", " }.to_owned();
    let mut key_separator = ": ".to_owned();
    if let Some(separators) = separators.filter(|separators| !separators.is_none()) {
        let texts: Vec<String> = separators.try_iter()?.filter_map(|text| text.as_str().map(str::to_owned)).collect();
        let [item, key] = texts
            .try_into()
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators are not a pair of texts"))?;
        (item_separator, key_separator) = (item, key);
    }
    let style = Style {
        ensure_ascii: is_true(ensure_ascii),
        indent,
        item_separator,
        key_separator,
        sort_keys: is_true(sort_keys),
    };
    let mut out = String::new();
    dump(value, &style, 0, &mut out)?;
    Ok(Value::from(out))
}

fn dump(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    // Python's own limit is its recursion limit.
    if depth > 200 {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => {
            charge_chars(value)?;
            quote(value.as_str().unwrap_or_default(), style.ensure_ascii, out);
        }
        ValueKind::Seq | ValueKind::Iterable => {
            charge_value(value)?;
            let items: Vec<Value> = value.try_iter()?.collect();
            list(&items, style, depth, ['[', ']'], out, |item, out| dump(item, style, depth + 1, out))?;
        }
        ValueKind::Map => {
            charge_value(value)?;
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                charge_chars(&key)?;
                pairs.push((key_text(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            list(&pairs, style, depth, ['{', '}'], out, |(key, value), out| {
                quote(key, style.ensure_ascii, out);
                out.push_str(&style.key_separator);
                dump(value, style, depth + 1, out)
            })?;
        }
        kind => {
            if let Some(integer) = value.downcast_object_ref::<WideInteger>() {
                out.push_str(&integer.0);
                return Ok(());
            }
            let what =
                if value.is_undefined() { "an undefined value".to_owned() } else { format!("a value of type {kind}") };
            return Err(Error::new(ErrorKind::BadSerialization, format!("tojson: {what} is not JSON serializable")));
        }
    }
    Ok(())
}

fn list<T>(
    items: &[T],
    style: &Style,
    depth: usize,
    [open, close]: [char; 2],
    out: &mut String,
    mut each: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let newline = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    let mut begin = out.len();
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { &style.item_separator });
        newline(depth + 1, out);
        each(item, out)?;
        if out.len() > begin + CHARGED {
            charge(out.len())?;
            begin = out.len();
        }
    }
    if !items.is_empty() {
        newline(depth, out);
    }
    out.push(close);
    Ok(())
}

fn number(value: &Value) -> String {
    match python::number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        number => number.to_owned(),
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("tojson: a key of type {kind}"))),
    }
}

fn quote(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && c as u32 > 0x7e) => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
