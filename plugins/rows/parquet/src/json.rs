// Values as JSON.
use crate::shape::{Kind, Shape};
use crate::time::{put_date, put_time, put_timestamp};
use chassis::{Error, Result};
use parquet::data_type::Decimal;
use parquet::record::Field;
use std::fmt::Write;

// A key with its colon.
pub fn put_name(name: &str, out: &mut String) {
    put_text(name, out);
    out.push(':');
}

pub fn put_value(value: &Field, shape: &Shape, out: &mut String) -> Result<()> {
    match (value, shape) {
        (Field::Null, _) => out.push_str("null"),
        (Field::Group(row), Shape::Group(fields)) => {
            out.push('{');
            for (i, ((_, value), (name, shape))) in row.get_column_iter().zip(fields).enumerate() {
                if i > 0 {
                    out.push(',');
                }
                put_name(name, out);
                put_value(value, shape, out)?;
            }
            out.push('}');
        }
        (Field::ListInternal(list), Shape::List(element)) => {
            out.push('[');
            for (i, value) in list.elements().iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                put_value(value, element, out)?;
            }
            out.push(']');
        }
        (Field::MapInternal(map), Shape::Map(key, value)) => put_map(map.entries(), key, value, out)?,
        (value, Shape::Leaf { path, kind }) => put_leaf(value, *kind, path, out)?,
        _ => return Err(Error::invalid("a value does not fit the schema")),
    }
    Ok(())
}

// Keys that are not texts become their JSON text.
fn put_map(entries: &[(Field, Field)], key_shape: &Shape, value_shape: &Shape, out: &mut String) -> Result<()> {
    out.push('{');
    for (i, (key, value)) in entries.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        let mut name = String::new();
        put_value(key, key_shape, &mut name)?;
        if name.starts_with('"') {
            out.push_str(&name);
        } else {
            put_text(&name, out);
        }
        out.push(':');
        put_value(value, value_shape, out)?;
    }
    out.push('}');
    Ok(())
}

fn put_leaf(value: &Field, kind: Kind, path: &str, out: &mut String) -> Result<()> {
    match (value, kind) {
        (Field::Long(v) | Field::TimeMicros(v), Kind::Time { per_second }) => {
            quoted(out, |out| put_time(*v, per_second, out));
        }
        (Field::TimeMillis(v), Kind::Time { per_second }) => {
            quoted(out, |out| put_time(i64::from(*v), per_second, out));
        }
        (
            Field::Long(v) | Field::TimestampMillis(v) | Field::TimestampMicros(v),
            Kind::Timestamp { per_second, utc },
        ) => quoted(out, |out| put_timestamp(*v, per_second, utc, out)),
        (Field::Date(days), _) => quoted(out, |out| put_date(i64::from(*days), out)),
        (Field::Int(v), Kind::Unsigned) => put(out, *v as u32),
        (Field::Long(v), Kind::Unsigned) => put(out, *v as u64),
        (Field::Bytes(bytes), Kind::Uuid) if bytes.len() == 16 => put_uuid(bytes.data(), out),
        (Field::Bytes(bytes), _) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => put_text(text, out),
            Err(error) => {
                return Err(Error::invalid(format!(
                    "column '{path}' has binary data, which is not UTF-8 at byte {} of {}; JSON holds only text",
                    error.valid_up_to(),
                    bytes.len()
                )));
            }
        },
        (Field::Bool(v), _) => put(out, v),
        (Field::Byte(v), _) => put(out, v),
        (Field::Short(v), _) => put(out, v),
        (Field::Int(v), _) => put(out, v),
        (Field::Long(v), _) => put(out, v),
        (Field::UByte(v), _) => put(out, v),
        (Field::UShort(v), _) => put(out, v),
        (Field::UInt(v), _) => put(out, v),
        (Field::ULong(v), _) => put(out, v),
        (Field::Float16(v), _) => put_float(v.is_finite(), f32::from(*v), out),
        (Field::Float(v), _) => put_float(v.is_finite(), v, out),
        (Field::Double(v), _) => put_float(v.is_finite(), v, out),
        (Field::Decimal(v), _) => return put_decimal(v, path, out),
        (Field::Str(text), _) => put_text(text, out),
        _ => return Err(Error::invalid(format!("column '{path}' has a value that does not fit its type"))),
    }
    Ok(())
}

fn put(out: &mut String, value: impl std::fmt::Display) {
    let _ = write!(out, "{value}");
}

// The shortest digits that give the same number; JSON has no NaN and no infinity.
fn put_float(is_finite: bool, value: impl std::fmt::Debug, out: &mut String) {
    if is_finite {
        let _ = write!(out, "{value:?}");
    } else {
        out.push_str("null");
    }
}

// Keeps all digits, as in 12.30.
fn put_decimal(value: &Decimal, path: &str, out: &mut String) -> Result<()> {
    let bytes = value.data();
    let scale = usize::try_from(value.scale()).unwrap_or(0);
    if bytes.len() > size_of::<i128>() {
        return Err(Error::invalid(format!("column '{path}' has decimals of more than 38 digits")));
    }
    let sign = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
    let number = bytes.iter().fold(sign as i128, |number, byte| number << 8 | i128::from(*byte));
    let digits = format!("{:0width$}", number.unsigned_abs(), width = scale + 1);
    if number < 0 {
        out.push('-');
    }
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    out.push_str(whole);
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    Ok(())
}

fn quoted(out: &mut String, body: impl FnOnce(&mut String)) {
    out.push('"');
    body(out);
    out.push('"');
}

fn put_uuid(bytes: &[u8], out: &mut String) {
    quoted(out, |out| {
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                out.push('-');
            }
            let _ = write!(out, "{byte:02x}");
        }
    });
}

fn put_text(text: &str, out: &mut String) {
    out.reserve(text.len() + 2);
    out.push('"');
    let mut begin = 0;
    for (i, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..=0x1F => "",
            _ => continue,
        };
        out.push_str(&text[begin..i]);
        out.push_str(escape);
        if escape.is_empty() {
            let _ = write!(out, "\\u{byte:04x}");
        }
        begin = i + 1;
    }
    out.push_str(&text[begin..]);
    out.push('"');
}
