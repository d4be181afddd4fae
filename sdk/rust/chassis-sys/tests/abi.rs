//! `src/abi.rs` is made from `sdk/abi.txt`, which `tools/check-abi` compares with the headers. This test fails if they
//! differ; with CHASSIS_RECORD=1 it writes the file, which may be empty until then.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

const HEADER: &str = "\
// Made from sdk/abi.txt by tests/abi.rs (CHASSIS_RECORD=1 cargo test -p chassis-sys). Sizes, offsets and values are
// those of the C headers, which have the comments.
use crate::Growable;
use core::ffi::c_void;

";

#[derive(Default)]
struct Abi {
    structs: BTreeMap<String, Struct>,
    constants: BTreeMap<String, String>,
    types: BTreeMap<String, String>,
}

#[derive(Default)]
struct Struct {
    size: String,
    align: String,
    fields: Vec<Field>,
}

struct Field {
    offset: String,
    bytes: String,
    name: String,
    kind: String,
}

fn parse(text: &str) -> Abi {
    let mut abi = Abi::default();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("  ") {
            let to: &mut Struct = abi.structs.get_mut(&current).expect("a field belongs to a struct");
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            if words[0] == "size" {
                let (size, align) = line["size ".len()..].split_once(" align ").expect("size N align N");
                (to.size, to.align) = (size.into(), align.into());
            } else {
                let (name, kind) = words[2].split_once(": ").expect("offset size name: type");
                let [offset, bytes, name, kind] = [words[0], words[1], name, kind].map(String::from);
                to.fields.push(Field { offset, bytes, name, kind });
            }
        } else if let Some(name) = line.strip_prefix("struct ") {
            current = name.into();
            abi.structs.insert(name.into(), Struct::default());
        } else if let Some((heading, text)) = line.split_once(" = ") {
            let (what, name) = heading.split_once(' ').expect("what name = text");
            match what {
                "constant" => abi.constants.insert(name.into(), text.into()),
                "type" => abi.types.insert(name.into(), text.into()),
                _ => None, // functions, which plugins define, and macros
            };
        } else {
            panic!("sdk/abi.txt: '{line}' is not understood");
        }
    }
    abi
}

/// The Rust type of a C type as clang writes it; opaque structs that it names are added to `opaque`.
struct Types<'a> {
    abi: &'a Abi,
    opaque: BTreeSet<String>,
}

impl Types<'_> {
    fn rust(&mut self, c: &str) -> String {
        let c = c.trim();
        if let Some((result, rest)) = c.split_once("(*)") {
            let arguments = rest.trim().strip_prefix('(').and_then(|r| r.strip_suffix(')')).expect("(arguments)");
            let arguments: Vec<String> =
                split_arguments(arguments).into_iter().filter(|a| *a != "void").map(|a| self.rust(a)).collect();
            let result = match result.trim() {
                "void" => String::new(),
                result => format!(" -> {}", self.rust(result)),
            };
            return format!("Option<unsafe extern \"C\" fn({}){result}>", arguments.join(", "));
        }
        if let Some((item, count)) = c.strip_suffix(']').and_then(|c| c.split_once('[')) {
            return format!("[{}; {count}]", self.rust(item));
        }
        if let Some(target) = c.strip_suffix('*') {
            let target = target.trim();
            return match target.strip_suffix("*const") {
                Some(inner) => format!("*const {}", self.rust(&format!("{inner}*"))),
                None if target.starts_with("const ") && !target.contains('*') => {
                    format!("*const {}", self.rust(&target["const ".len()..]))
                }
                None => format!("*mut {}", self.rust(target)),
            };
        }
        match c {
            "void" => "c_void".into(),
            "char" => "u8".into(),
            "float" => "f32".into(),
            "double" => "f64".into(),
            "size_t" => "usize".into(),
            _ => match c.strip_suffix("_t").and_then(|c| c.strip_prefix("uint").or(c.strip_prefix("int"))) {
                Some(bits) if bits.parse::<u32>().is_ok() => format!("{}{bits}", &c[..1]),
                _ => self.named(c),
            },
        }
    }

    fn named(&mut self, c: &str) -> String {
        let name = match c.strip_prefix("struct ") {
            Some(tag) if tag.starts_with("chassis_") => format!("{tag}_t"),
            Some(tag) => tag.into(),
            None => c.into(),
        };
        let tag = name.strip_suffix("_t").unwrap_or(&name);
        let is_alias =
            self.abi.types.get(&name).is_some_and(|text| !text.starts_with("struct ") || text.ends_with('*'));
        if !is_alias && !self.abi.structs.contains_key(tag) {
            self.opaque.insert(name.clone());
        }
        name
    }
}

fn split_arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

fn rust_name(c: &str) -> String {
    if ["fn", "impl", "in", "match", "move", "ref", "type", "use"].contains(&c) { format!("r#{c}") } else { c.into() }
}

/// One line of a struct; a long function has a line for each argument.
fn field_line(begin: &str, kind: &str) -> String {
    let line = format!("    {begin} {kind},\n");
    if line.len() <= 121 {
        return line;
    }
    let open = kind.find("fn(").expect("only functions are long") + 3;
    let close = kind.rfind(')').expect("the end of the arguments");
    let arguments: String = split_arguments(&kind[open..close]).iter().map(|a| format!("        {a},\n")).collect();
    format!("    {begin} {}\n{arguments}    {},\n", &kind[..open], &kind[close..])
}

/// The parts of a union or of a struct within it: fields named "value.…".
fn write_nested(out: &mut String, owner: &str, fields: &[Field], field: &Field, types: &mut Types) -> String {
    let name = format!("{owner}_{}", field.name.replace('.', "_"));
    let prefix = format!("{}.", field.name);
    let inner = fields.iter().filter(|f| f.name.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('.')));
    let mut lines = String::new();
    for part in inner {
        let kind = match part.kind.as_str() {
            "struct" | "union" => write_nested(out, owner, fields, part, types),
            c => types.rust(c),
        };
        let short = rust_name(&part.name[prefix.len()..]);
        if field.kind == "union" {
            writeln!(lines, "    {} {short}: {kind},", part.bytes).unwrap();
        } else {
            let base: u32 = field.offset.parse().unwrap();
            writeln!(lines, "    {} {} {short}: {kind},", part.offset.parse::<u32>().unwrap() - base, part.bytes)
                .unwrap();
        }
    }
    let align = if field.kind == "union" { "" } else { " 8" };
    writeln!(out, "abi_{}! {{ {name} {}{align} {{\n{lines}}} }}\n", field.kind, field.bytes).unwrap();
    name
}

fn generate(abi: &Abi) -> String {
    let mut types = Types { abi, opaque: BTreeSet::new() };
    let mut structs = String::new();
    for (tag, description) in &abi.structs {
        let mut lines = String::new();
        for field in description.fields.iter().filter(|f| !f.name.contains('.')) {
            let kind = match field.kind.as_str() {
                "struct" | "union" => write_nested(&mut structs, tag, &description.fields, field, &mut types),
                c => types.rust(c),
            };
            let begin = format!("{} {} {}:", field.offset, field.bytes, rust_name(&field.name));
            lines += &field_line(&begin, &kind);
        }
        writeln!(structs, "abi_struct! {{ {tag}_t {} {} {{\n{lines}}} }}", description.size, description.align)
            .unwrap();
        let first_size = format!("{}_V1_SIZE", tag.to_uppercase());
        if abi.constants.contains_key(&first_size) {
            writeln!(structs, "abi_grows!({tag}_t, {first_size});").unwrap();
        }
        structs.push('\n');
    }
    let mut out = String::from(HEADER);
    for (name, value) in &abi.constants {
        match value.parse::<u32>() {
            Ok(_) => writeln!(out, "pub const {name}: u32 = {value};"),
            Err(_) if value.parse::<i64>().is_ok() => writeln!(out, "pub const {name}: i64 = {value};"),
            Err(_) => writeln!(out, "pub const {name}: &str = {value:?};"),
        }
        .unwrap();
    }
    out.push('\n');
    let aliases: Vec<_> =
        abi.types.iter().filter(|(_, text)| !text.starts_with("struct ") || text.ends_with('*')).collect();
    for (name, text) in aliases {
        writeln!(out, "pub type {name} = {};", types.rust(text)).unwrap();
    }
    out.push('\n');
    for name in &types.opaque {
        writeln!(out, "abi_opaque!({name});").unwrap();
    }
    out + "\n" + structs.trim_end() + "\n"
}

#[test]
fn the_bindings_are_those_of_the_headers() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden =
        std::fs::read_to_string(here.join("../../abi.txt")).expect("sdk/abi.txt, which tools/check-abi writes");
    let expected = generate(&parse(&golden));
    let path = here.join("src/abi.rs");
    if std::env::var_os("CHASSIS_RECORD").is_some() {
        std::fs::write(&path, &expected).expect("src/abi.rs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines = found.lines();
    for (number, line) in expected.lines().enumerate() {
        let other = lines.next().unwrap_or("the end of the file");
        assert_eq!(other, line, "src/abi.rs:{}: run CHASSIS_RECORD=1 cargo test -p chassis-sys", number + 1);
    }
    assert_eq!(lines.next(), None, "src/abi.rs is too long: run CHASSIS_RECORD=1 cargo test -p chassis-sys");
}

#[test]
fn types_of_c_are_translated() {
    let abi = parse("struct chassis_str\n  size 16 align 8\n  0 8 ptr: const char *\n  8 8 len: uint64_t\n");
    let mut types = Types { abi: &abi, opaque: BTreeSet::new() };
    for (c, rust) in [
        ("const uint8_t *", "*const u8"),
        ("const chassis_str_t *const *", "*const *const chassis_str_t"),
        ("void **", "*mut *mut c_void"),
        ("int64_t[6]", "[i64; 6]"),
        (
            "struct chassis_status *(*)(const chassis_str_t *, void (*)(void *, float), int32_t)",
            "Option<unsafe extern \"C\" fn(*const chassis_str_t, Option<unsafe extern \"C\" fn(*mut c_void, f32)>, \
             i32) -> *mut chassis_status_t>",
        ),
    ] {
        assert_eq!(types.rust(c), rust);
    }
    assert_eq!(types.opaque.into_iter().collect::<Vec<_>>(), ["chassis_status_t"]);
}
