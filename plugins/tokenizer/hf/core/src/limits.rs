//! Bounds of templates, far above those of real ones: the compiler and values recurse on the caller's stack, and values
//! may double with every step.
use crate::error::{Error, Result};
use minijinja::machinery::{Span, Token, Tokenizer, WhitespaceConfig};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, ErrorKind};
use std::cell::Cell;

const MAX_SOURCE_BYTES: usize = 4 << 20;
const MAX_OPERATORS: usize = 1000; // of one tag
const MAX_BLOCKS: usize = 100; // in each other
const MAX_BRANCHES: usize = 200; // of one if

const MAX_VALUE_BYTES: usize = 64 << 20;
const MAX_WORK_BYTES: usize = 2 << 30; // all values that one rendering reads to make others
const MAX_DEPTH: usize = 100;
const BYTES_PER_VALUE: usize = 64;
const WORK_PER_ITEM: usize = 32; // of a list that is read

const COUNTED: &str = "__counted";
const STORED: &str = "__stored";
const DIVISOR: &str = "__divisor";

thread_local! {
    static WORK_BYTES: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn begin_rendering() {
    WORK_BYTES.set(0);
}

type Checked<T> = std::result::Result<T, minijinja::Error>;

fn refuse<T>(text: String) -> Checked<T> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
}

/// Counts a value of so many bytes.
pub(crate) fn charge(num_bytes: usize) -> Checked<()> {
    check_size(num_bytes)?;
    charge_work(num_bytes)
}

pub(crate) fn check_size(num_bytes: usize) -> Checked<()> {
    if num_bytes > MAX_VALUE_BYTES {
        return refuse(format!("a value of {num_bytes} bytes; the limit is {MAX_VALUE_BYTES}"));
    }
    Ok(())
}

/// Counts work that is as long as that of so many bytes.
pub(crate) fn charge_work(num_bytes: usize) -> Checked<()> {
    let sum = WORK_BYTES.get().saturating_add(num_bytes);
    if sum > MAX_WORK_BYTES {
        return refuse(format!("the template makes values of more than {MAX_WORK_BYTES} bytes in all"));
    }
    WORK_BYTES.set(sum);
    Ok(())
}

/// Counts a value that is read. A list that was joined of others may be far longer than what it takes in memory.
pub(crate) fn charge_value(value: &Value) -> Checked<()> {
    match value.kind() {
        ValueKind::String => charge(value.as_str().map_or(0, str::len)),
        ValueKind::Bytes => charge(value.len().unwrap_or(0)),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let num_items = value.len().unwrap_or(0);
            check_size(num_items.saturating_mul(BYTES_PER_VALUE))?;
            charge_work(num_items.saturating_mul(WORK_PER_ITEM))
        }
        _ => Ok(()),
    }
}

/// The value of an operand. What has no length becomes a list, since two of them are again one without.
fn counted(value: Value) -> Checked<Value> {
    if value.kind() == ValueKind::Iterable && value.len().is_none() {
        return as_list(&value);
    }
    charge_value(&value).map(|()| value)
}

fn as_list(value: &Value) -> Checked<Value> {
    let mut list = Vec::new();
    for item in value.try_iter()? {
        charge_work(BYTES_PER_VALUE)?;
        check_size(list.len() * BYTES_PER_VALUE)?;
        list.push(item);
    }
    Ok(Value::from(list))
}

pub(crate) fn check_depth(depth: usize) -> Checked<()> {
    if depth > MAX_DEPTH {
        return refuse(format!("the value is nested deeper than {MAX_DEPTH}"));
    }
    Ok(())
}

pub(crate) fn add_functions(environment: &mut Environment) {
    environment.add_function(COUNTED, counted);
    environment.add_function(STORED, |value: Value| -> Checked<Value> {
        check_stored(&value, 0)?;
        // One that was joined of others is slower to read with each further one.
        if value.kind() == ValueKind::Iterable {
            return as_list(&value);
        }
        Ok(value)
    });
    environment.add_function(DIVISOR, |value: Value| -> Checked<Value> {
        if matches!(value.kind(), ValueKind::Number | ValueKind::Bool) && !value.is_true() {
            return refuse("division by zero".to_owned());
        }
        Ok(value)
    });
}

/// What a namespace keeps must not contain a namespace, or it could contain itself.
fn check_stored(value: &Value, depth: usize) -> Checked<()> {
    check_depth(depth)?;
    charge_value(value)?;
    if !matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    charge(BYTES_PER_VALUE)?;
    if value.as_object().is_some_and(|object| object.type_name().contains("Namespace")) {
        return refuse("a namespace cannot hold a namespace".to_owned());
    }
    for item in value.try_iter()? {
        charge(BYTES_PER_VALUE)?;
        if value.kind() == ValueKind::Map {
            check_stored(&value.get_item(&item)?, depth + 1)?;
        } else {
            check_stored(&item, depth + 1)?;
        }
    }
    Ok(())
}

// --- source ---------------------------------------------------------------------------------------------------------

pub(crate) fn check_source(file: &str, source: &str) -> Result<()> {
    if source.len() > MAX_SOURCE_BYTES {
        let num_bytes = source.len();
        return Err(Error::invalid(format!(
            "{file}: a chat template of {num_bytes} bytes; the limit is {MAX_SOURCE_BYTES}"
        )));
    }
    Ok(())
}

/// The source with every operand of `+`, `~` and `|` counted, and the right one of comparisons and `in`, with checks of
/// divisors and of what namespaces get. Lines stay.
pub(crate) fn rewrite(file: &str, source: String) -> Result<String> {
    let whitespace = WhitespaceConfig { keep_trailing_newline: true, ..WhitespaceConfig::default() };
    let mut tokens = Tokenizer::new(&source, "chat", false, Default::default(), whitespace);
    let mut blocks = Blocks { file, branches: Vec::new() };
    let mut insertions = Vec::new();
    let mut tag: Vec<(Token, Span)> = Vec::new();
    // An error is left to the compiler, which says it better.
    while let Ok(Some((token, span))) = tokens.next_token() {
        match token {
            Token::TemplateData(_) => {}
            Token::VariableStart | Token::BlockStart => tag = vec![(token, span)],
            Token::VariableEnd | Token::BlockEnd => {
                blocks.add(&tag)?;
                Tag::new(&tag, &mut insertions).scan();
                tag.clear();
            }
            _ => tag.push((token, span)),
        }
    }
    blocks.check_operators(&tag)?;
    insertions.sort_by_key(|insertion| (insertion.at, insertion.order));
    let mut out = String::with_capacity(source.len() + 16 * insertions.len());
    let mut begin = 0;
    for Insertion { at, text, .. } in insertions {
        out.push_str(&source[begin..at]);
        out.push_str(&text);
        begin = at;
    }
    out.push_str(&source[begin..]);
    Ok(out)
}

struct Blocks<'a> {
    file: &'a str,
    branches: Vec<usize>, // of each open block
}

impl Blocks<'_> {
    fn add(&mut self, tag: &[(Token, Span)]) -> Result<()> {
        self.check_operators(tag)?;
        let (Some((Token::BlockStart, span)), Some((Token::Ident(name), _))) = (tag.first(), tag.get(1)) else {
            return Ok(());
        };
        let line = span.start_line;
        let file = self.file;
        match *name {
            "elif" => {
                if let Some(last) = self.branches.last_mut() {
                    *last += 1;
                    if *last > MAX_BRANCHES {
                        return Err(too_many(file, line, "branches of an if", MAX_BRANCHES));
                    }
                }
            }
            name if name.starts_with("end") => {
                self.branches.pop();
            }
            "set" if tag.iter().any(|(token, _)| matches!(token, Token::Assign)) => {}
            "if" | "for" | "with" | "macro" | "call" | "filter" | "autoescape" | "block" | "set" => {
                self.branches.push(0);
                if self.branches.len() > MAX_BLOCKS {
                    return Err(too_many(file, line, "blocks in each other", MAX_BLOCKS));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_operators(&self, tag: &[(Token, Span)]) -> Result<()> {
        let is_operator = |token: &Token| match token {
            Token::Ident(word) => is_keyword(word),
            Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => false,
            Token::Comma | Token::Colon | Token::Assign => false,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => false,
            _ => true,
        };
        let num_operators = tag.iter().filter(|(token, _)| is_operator(token)).count();
        if num_operators > MAX_OPERATORS {
            return Err(too_many(self.file, tag[0].1.start_line, "operators in one tag", MAX_OPERATORS));
        }
        Ok(())
    }
}

fn too_many(file: &str, line: u16, what: &str, limit: usize) -> Error {
    Error::invalid(format!("{file}:{line}: the chat template has more than {limit} {what}, which is the limit"))
}

fn is_keyword(word: &str) -> bool {
    matches!(word, "and" | "or" | "not" | "in" | "is" | "if" | "else" | "recursive" | "ignore" | "as")
}

struct Insertion {
    at: usize,
    order: i64, // of those at one place
    text: String,
}

struct Tag<'a, 's> {
    tokens: &'a [(Token<'s>, Span)],
    insertions: &'a mut Vec<Insertion>,
    levels: Vec<Level>,
    has_values: bool, // false: of a block whose words are no values
    is_for: bool,     // before its `in`, which compares nothing
}

/// The operand that is being read within one pair of brackets.
#[derive(Default)]
struct Level {
    begin: Option<usize>,
    is_counted: bool, // behind an operator that counts
    divides: bool,
    is_test: bool,
}

impl<'a, 's> Tag<'a, 's> {
    fn new(tokens: &'a [(Token<'s>, Span)], insertions: &'a mut Vec<Insertion>) -> Tag<'a, 's> {
        Tag { tokens, insertions, levels: vec![Level::default()], has_values: true, is_for: false }
    }

    fn scan(mut self) {
        let mut first = 1;
        let mut stores = false;
        if let (Some((Token::BlockStart, _)), Some((Token::Ident(name), _))) = (self.tokens.first(), self.tokens.get(1))
        {
            self.has_values = !matches!(*name, "filter" | "set" | "call" | "include" | "import" | "from");
            self.is_for = *name == "for";
            first = 2;
            if *name == "set" {
                let assign = self.tokens.iter().position(|(token, _)| matches!(token, Token::Assign));
                let Some(assign) = assign else { return };
                self.has_values = true;
                first = assign + 1;
                stores = first < self.tokens.len()
                    && self.tokens[..assign].iter().any(|(token, _)| matches!(token, Token::Dot));
                if stores {
                    let at = end(self.tokens[assign].1);
                    self.insertions.push(Insertion { at, order: i64::MIN, text: format!("{STORED}((") });
                }
            }
        }
        if self.has_values {
            (first..self.tokens.len()).for_each(|i| self.token(i));
            while !self.levels.is_empty() {
                self.close(self.tokens.len(), false);
                self.levels.pop();
            }
        }
        if let (true, Some((_, last))) = (stores, self.tokens.last()) {
            self.insertions.push(Insertion { at: end(*last), order: i64::MAX, text: "))".to_owned() });
        }
    }

    fn token(&mut self, i: usize) {
        let behind_dot = matches!(self.tokens[i - 1].0, Token::Dot | Token::Pipe);
        match &self.tokens[i].0 {
            Token::Plus | Token::Tilde => self.operator(i, true),
            // A sign, which minijinja binds tighter than what stands behind the operand.
            Token::Minus if self.levels.last().is_some_and(|level| level.begin.is_none()) => self.begin(i),
            Token::Minus | Token::Mul | Token::Pow => self.operator(i, false),
            Token::Div | Token::FloorDiv | Token::Mod => {
                self.operator(i, false);
                if let Some(level) = self.levels.last_mut() {
                    level.divides = true;
                }
            }
            Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => {
                self.operator(i, false);
                self.count_next();
            }
            Token::Comma | Token::Colon | Token::Assign => self.operator(i, false),
            Token::Ident(word) if !behind_dot && is_keyword(word) => {
                let was_test = self.levels.last().is_some_and(|level| level.is_test && level.begin.is_none());
                self.operator(i, false);
                if let Some(level) = self.levels.last_mut() {
                    level.is_test = *word == "is" || (*word == "not" && was_test);
                }
                if *word == "in" && self.is_for && self.levels.len() == 1 {
                    self.is_for = false;
                } else if *word == "in" && !was_test {
                    self.count_next();
                }
            }
            Token::Pipe => self.count(i),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                self.begin(i);
                self.levels.push(Level::default());
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                self.close(i, false);
                if self.levels.len() > 1 {
                    self.levels.pop();
                }
            }
            _ => self.begin(i),
        }
    }

    fn begin(&mut self, i: usize) {
        if let Some(level) = self.levels.last_mut() {
            level.begin.get_or_insert(i);
        }
    }

    fn operator(&mut self, i: usize, counts: bool) {
        self.close(i, counts);
        if let Some(level) = self.levels.last_mut() {
            *level = Level { is_counted: counts, ..Level::default() };
        }
    }

    fn count_next(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.is_counted = true;
        }
    }

    /// An operand ends before token `i`.
    fn close(&mut self, i: usize, counts: bool) {
        if self.levels.last().is_some_and(|level| counts || level.is_counted) {
            self.count(i);
        }
        if let Some(Level { begin: Some(begin), divides: true, is_test: false, .. }) = self.levels.last() {
            self.call(DIVISOR, *begin, i);
        }
    }

    fn count(&mut self, i: usize) {
        let Some(Level { begin: Some(begin), is_test: false, .. }) = self.levels.last() else { return };
        let begin = *begin;
        // Literals are no longer than the source.
        let is_name = |token: &Token| matches!(token, Token::Ident(_) | Token::ParenClose | Token::BracketClose);
        if begin >= i || !is_name(&self.tokens[i - 1].0) {
            return;
        }
        self.call(COUNTED, begin, i);
    }

    /// A later call of the same operand stands around an earlier one.
    fn call(&mut self, function: &str, begin: usize, i: usize) {
        if begin >= i {
            return;
        }
        let (from, to) = (self.tokens[begin].1.start_offset as usize, end(self.tokens[i - 1].1));
        let order = self.insertions.len() as i64 + 1;
        self.insertions.push(Insertion { at: from, order: -order, text: format!("{function}(") });
        self.insertions.push(Insertion { at: to, order, text: ")".to_owned() });
    }
}

fn end(span: Span) -> usize {
    span.end_offset as usize
}
