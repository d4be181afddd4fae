// The form of a column's values in JSON, as determined by the schema. The crate's own reader follows the same nesting
// rules (https://github.com/apache/parquet-format/blob/master/LogicalTypes.md).
use chassis::{Error, Result};
use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::schema::types::Type;

pub enum Shape {
    Leaf { path: String, kind: Kind },
    Group(Vec<(String, Shape)>),
    List(Box<Shape>),
    Map(Box<Shape>, Box<Shape>),
}

#[derive(Clone, Copy)]
pub enum Kind {
    // The value itself determines its form.
    Plain,
    Unsigned,
    Uuid,
    // `per_second`: units per second, such as 1000.
    Time { per_second: i64 },
    Timestamp { per_second: i64, utc: bool },
}

// `path` is that of the column, for messages: "messages.list.element.role".
pub fn shape_of(field: &Type, path: &str) -> Result<Shape> {
    let info = field.get_basic_info();
    let is_repeated = info.has_repetition() && info.repetition() == Repetition::REPEATED;
    if field.is_primitive() {
        let leaf = Shape::Leaf { path: path.to_owned(), kind: kind_of(field, path)? };
        return Ok(if is_repeated { list_of(leaf) } else { leaf });
    }
    match info.converted_type() {
        ConvertedType::LIST | ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE if is_repeated => {
            Err(refused(path, "a repeated list or map"))
        }
        ConvertedType::LIST => {
            let repeated = only_repeated(field, path)?;
            let name = format!("{path}.{}", repeated.name());
            if is_element(repeated) {
                return match shape_of(repeated, &name)? {
                    list @ Shape::List(_) => Ok(list),
                    _ => Err(refused(path, "a list of an unknown layout")),
                };
            }
            let [element] = repeated.get_fields() else { return Err(refused(path, "a list without an element")) };
            Ok(list_of(shape_of(element, &format!("{name}.{}", element.name()))?))
        }
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => {
            let entry = only_repeated(field, path)?;
            let name = format!("{path}.{}", entry.name());
            let shape = |field: &Type| shape_of(field, &format!("{name}.{}", field.name()));
            match if entry.is_group() { entry.get_fields() } else { &[] } {
                [key] if key.is_primitive() => Ok(list_of(shape(key)?)),
                [key, value] if key.is_primitive() => Ok(Shape::Map(Box::new(shape(key)?), Box::new(shape(value)?))),
                _ => Err(refused(path, "a map of an unknown layout")),
            }
        }
        _ => {
            let fields = field.get_fields().iter();
            let fields = fields.map(|f| Ok((f.name().to_owned(), shape_of(f, &format!("{path}.{}", f.name()))?)));
            let fields = fields.collect::<Result<Vec<_>>>()?;
            if fields.is_empty() {
                return Err(refused(path, "a group without fields"));
            }
            let group = Shape::Group(fields);
            Ok(if is_repeated { list_of(group) } else { group })
        }
    }
}

fn list_of(element: Shape) -> Shape {
    Shape::List(Box::new(element))
}

fn refused(path: &str, what: &str) -> Error {
    Error::invalid(format!("column '{path}' is {what}, which is not supported"))
}

fn only_repeated<'a>(field: &'a Type, path: &str) -> Result<&'a Type> {
    match field.get_fields() {
        [repeated] if repeated.get_basic_info().repetition() == Repetition::REPEATED => Ok(repeated),
        _ => Err(refused(path, "a list or map of an unknown layout")),
    }
}

// True if the repeated field is itself the element, as old writers have it, and not a group around it.
fn is_element(repeated: &Type) -> bool {
    if repeated.is_primitive() {
        return true;
    }
    let fields = repeated.get_fields();
    let is_list = match repeated.get_basic_info().logical_type_ref() {
        Some(logical) => logical == &LogicalType::List,
        None => repeated.get_basic_info().converted_type() == ConvertedType::LIST,
    };
    let of_repeated = fields.len() == 1 && fields[0].get_basic_info().repetition() == Repetition::REPEATED;
    !is_list && !of_repeated && (fields.len() > 1 || repeated.name() == "array" || repeated.name().ends_with("_tuple"))
}

fn kind_of(field: &Type, path: &str) -> Result<Kind> {
    let physical = field.get_physical_type();
    let info = field.get_basic_info();
    let is_number = matches!(physical, PhysicalType::INT32 | PhysicalType::INT64);
    Ok(match info.logical_type_ref() {
        Some(LogicalType::Integer(integer)) if is_number && !integer.is_signed => Kind::Unsigned,
        Some(LogicalType::Time(time)) if is_number => Kind::Time { per_second: per_second(&time.unit) },
        Some(LogicalType::Timestamp(stamp)) if is_number => {
            Kind::Timestamp { per_second: per_second(&stamp.unit), utc: stamp.is_adjusted_to_u_t_c }
        }
        Some(LogicalType::Uuid) => Kind::Uuid,
        Some(LogicalType::Variant(_) | LogicalType::Geometry(_) | LogicalType::Geography(_)) => {
            return Err(refused(path, "of a type that JSON lacks"));
        }
        _ => match info.converted_type() {
            ConvertedType::TIME_MILLIS => Kind::Time { per_second: 1000 },
            ConvertedType::TIME_MICROS => Kind::Time { per_second: 1_000_000 },
            // Before logical types there was only this one.
            ConvertedType::TIMESTAMP_MILLIS => Kind::Timestamp { per_second: 1000, utc: true },
            ConvertedType::TIMESTAMP_MICROS => Kind::Timestamp { per_second: 1_000_000, utc: true },
            ConvertedType::INTERVAL => return Err(refused(path, "an interval")),
            _ if physical == PhysicalType::INT96 => Kind::Timestamp { per_second: 1000, utc: false },
            _ => Kind::Plain,
        },
    })
}

fn per_second(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::MILLIS => 1000,
        TimeUnit::MICROS => 1_000_000,
        TimeUnit::NANOS => 1_000_000_000,
    }
}
