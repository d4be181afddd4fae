//! Imitates the environment in which transformers renders chat templates: trimmed blocks, Python's spelling of values,
//! its string methods, `tojson`, `raise_exception`, `strftime_now`, and blocks of `generation`.
//!
//! Known differences: `~` joins true, false and none by Jinja's names, not Python's; a tuple is spelt as a list.
use crate::directory::Template;
use crate::error::{Error, Result};
use crate::json;
use crate::limits::{self, charge, charge_chars, charge_deep, charge_work};
use crate::marks;
use crate::methods;
use crate::python::{repr, to_str};
use crate::strftime::strftime;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior};
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};

/// Instructions that one rendering may use, and those added for each message if there are many messages. Long
/// conversations need some 10⁵.
const FUEL: u64 = 5_000_000;
const FUEL_OF_MESSAGE: u64 = 1500;
const MANY_MESSAGES: u64 = 1000;
const MAX_TEXT_BYTES: usize = 256 << 20;
const MAX_CACHED: usize = 16;

thread_local! {
    static NOW_UNIX_S: Cell<i64> = const { Cell::new(0) };
}

/// The templates of a directory, and those that were given as texts.
pub(crate) struct Templates {
    of_directory: Vec<Template>,
    pub(crate) special_tokens: Vec<(String, String)>,
    compiled: Mutex<HashMap<String, Arc<Compiled>>>, // by source
}

pub(crate) struct Compiled {
    pub(crate) file: String,
    pub(crate) source: String,
    pub(crate) has_generation: bool,
    environment: Environment<'static>,
}

impl Templates {
    pub(crate) fn new(of_directory: Vec<Template>, special_tokens: Vec<(String, String)>) -> Templates {
        Templates { of_directory, special_tokens, compiled: Mutex::default() }
    }

    /// Chooses as HF does: the given text, "tool_use" if there are tools, else "default".
    pub(crate) fn choose(&self, text: &str, has_tools: bool) -> Result<Arc<Compiled>> {
        if !text.is_empty() {
            return self.compile("the given template", text);
        }
        let named = |name: &str| self.of_directory.iter().find(|template| template.name == name);
        let tool_use = if has_tools { named("tool_use") } else { None };
        match tool_use.or_else(|| named("default")) {
            Some(template) => self.compile(&template.file, &template.source),
            None if self.of_directory.is_empty() => Err(Error::invalid(
                "the model directory has no chat template (chat_template.jinja, or chat_template in \
                 tokenizer_config.json); name one of the slot templates, such as data.template = \"chatml\"",
            )),
            None => {
                let names: Vec<&str> = self.of_directory.iter().map(|template| template.name.as_str()).collect();
                Err(Error::invalid(format!("there is no default chat template, only {}", names.join(", "))))
            }
        }
    }

    fn compile(&self, file: &str, source: &str) -> Result<Arc<Compiled>> {
        if let Some(compiled) = self.lock().get(source) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(Compiled::new(file, source)?);
        let mut all = self.lock();
        if all.len() >= MAX_CACHED {
            all.clear();
        }
        all.insert(source.to_owned(), compiled.clone());
        Ok(compiled)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Compiled>>> {
        self.compiled.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Compiled {
    fn new(file: &str, source: &str) -> Result<Compiled> {
        limits::check_source(file, source)?;
        let (rewritten, has_generation) = rewrite_generation(&source.replace("\r\n", "\n").replace('\r', "\n"));
        let rewritten = limits::rewrite(file, rewritten)?;
        let mut environment = environment();
        environment.add_template_owned("chat", rewritten).map_err(|error| failed(file, &error))?;
        Ok(Compiled { file: file.to_owned(), source: source.to_owned(), has_generation, environment })
    }

    /// `open_close`: the marks around the output of `generation` blocks.
    pub(crate) fn render(
        &self,
        variables: &Value,
        input_bytes: usize,
        unix_time_s: i64,
        open_close: Option<(char, char)>,
    ) -> Result<String> {
        NOW_UNIX_S.set(unix_time_s);
        marks::AROUND_GENERATION.set(open_close);
        limits::begin_rendering(input_bytes);
        let mut out = Limited(Vec::new());
        let num_messages = variables.get_attr("messages").ok().and_then(|list| list.len()).unwrap_or(0) as u64;
        let mut with_more_fuel = None;
        let mut fuel = FUEL;
        if num_messages > MANY_MESSAGES {
            fuel += num_messages * FUEL_OF_MESSAGE;
            with_more_fuel.insert(self.environment.clone()).set_fuel(Some(fuel));
        }
        let environment = with_more_fuel.as_ref().unwrap_or(&self.environment);
        let template = environment.get_template("chat").map_err(|error| failed(&self.file, &error))?;
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(variables, &mut out).map(|_| ())));
        marks::AROUND_GENERATION.set(None);
        // The engine panics if a template leaves out arguments that it relies on, as in loop.cycle().
        let rendered = rendered.map_err(|_| {
            Error::invalid(format!(
                "{}: the template engine cannot run this template: does it call loop.cycle() without arguments?",
                self.file
            ))
        })?;
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => out_of_fuel(&self.file, &error, fuel),
            _ => failed(&self.file, &error),
        })?;
        String::from_utf8(out.0).map_err(|_| Error::internal(format!("{}: the text is not UTF-8", self.file)))
    }
}

struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(io::Error::other(format!("the text would be longer than {MAX_TEXT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn place(file: &str, error: &minijinja::Error) -> String {
    error.line().map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
}

fn out_of_fuel(file: &str, error: &minijinja::Error, fuel: u64) -> Error {
    let place = place(file, error);
    Error::invalid(format!("{place}: the chat template was stopped after {fuel} instructions: does it loop?"))
}

fn failed(file: &str, error: &minijinja::Error) -> Error {
    let place = place(file, error);
    let kind = error.kind().to_string();
    // The message of raise_exception is the template's own.
    let said = match error.detail() {
        Some(detail) if detail.starts_with(RAISED) => detail[RAISED.len()..].to_owned(),
        Some(detail) => format!("{kind}: {detail}"),
        None => kind,
    };
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Error::invalid(format!("{place}: {said}{cause}"))
}

const RAISED: &str = "raised: ";

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(false);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => {
            charge(text.len())?;
            out.write_str(text).map_err(minijinja::Error::from)
        }
        None => out.write_str(&to_str(value)?).map_err(minijinja::Error::from),
    });

    environment
        .add_filter("tojson", |value: &Value, args: Rest<Value>, kwargs: Kwargs| json::tojson(value, &args, kwargs));
    environment.add_filter("string", |value: &Value| to_str(value));
    environment.add_filter("trim", |value: &Value, chars: Option<String>| {
        charge_chars(value)?;
        to_str(value).map(|text| methods::strip(&text, true, true, chars.as_deref()).to_owned())
    });
    environment.add_filter("join", join);
    environment.add_filter("round", round);
    environment.add_filter("pprint", |value: &Value| repr(value));
    add_bounded_filters(&mut environment);
    add_counted_filters(&mut environment);
    add_counted_tests(&mut environment);
    limits::add_functions(&mut environment);
    environment.add_test("sequence", |value: &Value| {
        let kinds = [ValueKind::Seq, ValueKind::String, ValueKind::Map, ValueKind::Undefined];
        kinds.contains(&value.kind())
    });
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("iterable", |value: &Value| {
        let kinds = [ValueKind::Seq, ValueKind::String, ValueKind::Map, ValueKind::Undefined, ValueKind::Iterable];
        kinds.contains(&value.kind())
    });
    environment.add_test("callable", |value: &Value| {
        value.as_object().is_some_and(|object| matches!(object.repr(), minijinja::value::ObjectRepr::Plain))
    });
    environment.add_function("raise_exception", |message: &Value| -> std::result::Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", to_str(message)?)))
    });
    environment.add_function("strftime_now", |format: &str| strftime(format, NOW_UNIX_S.get()));
    let mark = |mark: Option<char>| mark.map(String::from).unwrap_or_default();
    environment.add_function(BEGIN, move || mark(marks::AROUND_GENERATION.get().map(|(open, _)| open)));
    environment.add_function(END, move || mark(marks::AROUND_GENERATION.get().map(|(_, close)| close)));
    environment
}

type Checked<T> = std::result::Result<T, minijinja::Error>;

/// Filters of minijinja whose results may be far longer than their inputs.
fn add_bounded_filters(environment: &mut Environment<'static>) {
    environment.add_filter("replace", |value: &Value, from: &Value, to: &Value, count: Option<i64>| -> Checked<_> {
        methods::replace(&to_str(value)?, &to_str(from)?, &to_str(to)?, count.unwrap_or(-1))
    });
    fn number(args: &[Value], i: usize, name: &str) -> usize {
        let by_name = || args.last().and_then(|kwargs| kwargs.get_attr(name).ok());
        let value = args.get(i).filter(|value| value.is_number()).cloned().or_else(by_name);
        value.and_then(|value| value.as_usize()).unwrap_or(0)
    }
    let indent = Value::from_function(minijinja::filters::indent);
    environment.add_filter("indent", move |state: &State, args: Rest<Value>| -> Checked<Value> {
        let num_lines = args.first().and_then(Value::as_str).map_or(0, |text| text.split('\n').count());
        args.first().map_or(Ok(()), charge_chars)?;
        charge(num_lines.saturating_mul(number(&args, 1, "width")))?;
        indent.call(state, &args)
    });
    let format = Value::from_function(minijinja::filters::format);
    environment.add_filter("format", move |state: &State, args: Rest<Value>| -> Checked<Value> {
        methods::check_format(args.first().and_then(Value::as_str).unwrap_or_default(), args.get(1..).unwrap_or(&[]))?;
        format.call(state, &args)
    });
    for (name, filter) in [
        ("batch", Value::from_function(minijinja::filters::batch)),
        ("slice", Value::from_function(minijinja::filters::slice)),
    ] {
        environment.add_filter(name, move |state: &State, args: Rest<Value>| -> Checked<Value> {
            charge(number(&args, 1, "count").saturating_mul(std::mem::size_of::<Value>()))?;
            filter.call(state, &args)
        });
    }
}

fn charge_all_chars(args: &[Value]) -> Checked<()> {
    args.iter().try_for_each(charge_chars)
}

/// Counts the parts of a text, each of which becomes a value.
fn charge_parts(args: &[Value], num_parts: impl Fn(&str) -> usize) -> Checked<()> {
    charge_all_chars(args)?;
    charge(args.first().and_then(Value::as_str).map_or(0, num_parts).saturating_mul(limits::BYTES_PER_VALUE))
}

/// Filters of minijinja that read whole texts, or compare all values of a list.
fn add_counted_filters(environment: &mut Environment<'static>) {
    use minijinja::filters;
    type Count = fn(&[Value]) -> Checked<()>;
    let compared: Count = |args| {
        const COMPARISONS: usize = 16; // a list of 2^16 sorted
        charge_work(args.first().map_or(Ok(0), charge_deep)?.saturating_mul(COMPARISONS))
    };
    let split: Count = |args| {
        let separator = args.get(1).and_then(Value::as_str).unwrap_or_default();
        charge_parts(args, |text| match separator {
            "" => text.split_whitespace().count(),
            separator => text.matches(separator).count() + 1,
        })
    };
    let filters: [(&str, Value, Count); 24] = [
        ("escape", Value::from_function(filters::escape), charge_all_chars),
        ("e", Value::from_function(filters::escape), charge_all_chars),
        ("lower", Value::from_function(filters::lower), charge_all_chars),
        ("upper", Value::from_function(filters::upper), charge_all_chars),
        ("title", Value::from_function(filters::title), charge_all_chars),
        ("capitalize", Value::from_function(filters::capitalize), charge_all_chars),
        ("length", Value::from_function(filters::length), charge_all_chars),
        ("count", Value::from_function(filters::length), charge_all_chars),
        ("reverse", Value::from_function(filters::reverse), charge_all_chars),
        ("attr", Value::from_function(filters::attr), charge_all_chars),
        ("first", Value::from_function(filters::first), charge_all_chars),
        ("last", Value::from_function(filters::last), charge_all_chars),
        ("int", Value::from_function(filters::int), charge_all_chars),
        ("float", Value::from_function(filters::float), charge_all_chars),
        ("list", Value::from_function(filters::list), |args| charge_parts(args, str::len)),
        ("lines", Value::from_function(filters::lines), |args| charge_parts(args, |text| text.lines().count())),
        ("split", Value::from_function(filters::split), split),
        ("dictsort", Value::from_function(filters::dictsort), compared),
        ("sort", Value::from_function(filters::sort), compared),
        ("unique", Value::from_function(filters::unique), compared),
        ("groupby", Value::from_function(filters::groupby), compared),
        ("min", Value::from_function(filters::min), compared),
        ("max", Value::from_function(filters::max), compared),
        ("sum", Value::from_function(filters::sum), compared),
    ];
    for (name, filter, count) in filters {
        environment.add_filter(name, move |state: &State, args: Rest<Value>| -> Checked<Value> {
            count(&args)?;
            filter.call(state, &args)
        });
    }
}

/// Tests, which filters such as select run for each value of a list.
fn add_counted_tests(environment: &mut Environment<'static>) {
    use minijinja::tests;
    let tests = [
        (&["eq", "equalto", "=="][..], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["sameas"], Value::from_function(tests::is_sameas)),
        (&["lower"], Value::from_function(tests::is_lower)),
        (&["upper"], Value::from_function(tests::is_upper)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
    ];
    for (names, test) in tests {
        for name in names {
            let test = test.clone();
            environment.add_test(*name, move |state: &State, args: Rest<Value>| -> Checked<bool> {
                args.iter().try_for_each(|value| charge_deep(value).map(|_| ()))?;
                test.call(state, &args).map(|value| value.is_true())
            });
        }
    }
}

fn join(value: &Value, separator: Option<String>, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let attribute: Option<String> = kwargs.get("attribute")?;
    let separator = match separator {
        Some(separator) => separator,
        None => kwargs.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    kwargs.assert_all_used()?;
    let items = value.try_iter()?.map(|item| match &attribute {
        Some(attribute) => item.get_attr(attribute),
        None => Ok(item),
    });
    methods::join(items, &separator)
}

/// round(value, precision=0, method="common"); "common" rounds a half to even, as Python does.
fn round(
    value: &Value,
    precision: Option<i32>,
    method: Option<String>,
) -> std::result::Result<Value, minijinja::Error> {
    let precision = precision.unwrap_or(0).clamp(-400, 400);
    let scale = 10f64.powi(precision);
    let number = f64::try_from(value.clone())?;
    match method.as_deref().unwrap_or("common") {
        "ceil" => Ok(Value::from((number * scale).ceil() / scale)),
        "floor" => Ok(Value::from((number * scale).floor() / scale)),
        "common" if value.is_integer() && precision >= 0 => Ok(value.clone()),
        "common" if precision < 0 => Ok(Value::from((number * scale).round_ties_even() / scale)),
        "common" => Ok(Value::from(format!("{number:.*}", precision as usize).parse::<f64>().unwrap_or(number))),
        _ => Err(minijinja::Error::new(ErrorKind::InvalidOperation, "method must be common, ceil or floor")),
    }
}

// --- generation -----------------------------------------------------------------------------------------------------

const BEGIN: &str = "__begin_generation";
const END: &str = "__end_generation";

/// `{% generation %}` becomes `{% with %}`, which has the scope of transformers' block, with a mark at each end. Every
/// new tag touches an old one, so white space control and lines stay as they are.
fn rewrite_generation(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut found = false;
    let mut rest = source;
    let mut has_comments = true;
    let begins = |rest: &str| rest.as_bytes().windows(2).position(|two| two == b"{%" || two == b"{#");
    while let Some(at) = begins(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_comment = has_comments && rest.starts_with("{#");
        let comment = if is_comment { rest.find("#}") } else { None };
        has_comments &= !is_comment || comment.is_some(); // no end found: further searches would fail too
        match generation_tag(rest).filter(|_| rest.starts_with("{%")) {
            Some((left, is_begin, right, behind)) => {
                out.push_str(&if is_begin {
                    format!("{{%{left} with %}}{{{{ {BEGIN}() }}}}{{% if true {right}%}}")
                } else {
                    format!("{{%{left} endif %}}{{{{ {END}() }}}}{{% endwith {right}%}}")
                });
                found = true;
                rest = behind;
            }
            None => {
                let num_bytes = comment.unwrap_or(0) + 2;
                out.push_str(&rest[..num_bytes]);
                rest = &rest[num_bytes..];
            }
        }
    }
    out.push_str(rest);
    (out, found)
}

/// The signs of white space control, whether the tag begins a block, and the source after the tag.
fn generation_tag(source: &str) -> Option<(&str, bool, &str, &str)> {
    let sign = |source: &str| source.len().min(usize::from(source.starts_with(['-', '+'])));
    let inside = &source[2..];
    let (left, inside) = inside.split_at(sign(inside));
    let word = inside.trim_start();
    let (is_begin, behind) = match word.strip_prefix("endgeneration") {
        Some(behind) => (false, behind),
        None => (true, word.strip_prefix("generation")?),
    };
    let behind = behind.trim_start();
    let (right, behind) = behind.split_at(sign(behind));
    Some((left, is_begin, right, behind.strip_prefix("%}")?))
}

#[cfg(test)]
mod tests {
    use super::rewrite_generation;

    #[test]
    fn generation_tags_keep_their_white_space_control_and_lines() {
        let (out, found) =
            rewrite_generation("a{%- generation -%}\nb{{ generation }}{%+ endgeneration %}{% if generation %}");
        assert_eq!(
            out,
            "a{%- with %}{{ __begin_generation() }}{% if true -%}\nb{{ generation }}{%+ endif %}\
             {{ __end_generation() }}{% endwith %}{% if generation %}"
        );
        assert!(found);
        assert!(!rewrite_generation("{% generations %}{% set generation = 1 %}{# {% generation %} #}{#").1);
    }
}
