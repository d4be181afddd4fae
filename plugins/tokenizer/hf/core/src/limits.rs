//! Bounds of templates, far above those of real ones: the compiler and values recurse on the caller's stack, values may
//! double with every step, and one instruction may read a long value. So bytes are counted where values are read, every
//! iteration of a loop is counted, and one rendering has a time limit.
use crate::error::{Error, Result};
use minijinja::machinery::{Span, Token, Tokenizer, WhitespaceConfig};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, ErrorKind};
use std::cell::Cell;
use std::time::{Duration, Instant};

const MAX_SOURCE_BYTES: usize = 4 << 20;
const MAX_OPERATORS: usize = 1000; // of one tag
const MAX_BLOCKS: usize = 100; // in each other
const MAX_BRANCHES: usize = 200; // of one if

const MAX_VALUE_BYTES: usize = 64 << 20;
// The limit on the bytes of all values that one rendering reads to make others. It is higher for long conversations, in
// which templates join the text so far with every message.
const MIN_WORK_BYTES: usize = 64 << 20;
const WORK_PER_INPUT_BYTE: usize = 4096;
const MAX_WORK_BYTES: usize = 4 << 30;
const MAX_DEPTH: usize = 100;
pub(crate) const BYTES_PER_VALUE: usize = 64;
const WORK_PER_ITEM: usize = 32; // of a list that is read
pub(crate) const WORK_PER_CHAR: usize = 4; // of a text whose characters are examined one by one
const MAX_TIME: Duration = Duration::from_secs(10); // of one rendering; real ones take milliseconds
const MAX_GAP: Duration = Duration::from_secs(1); // most that counts between two checks; the machine may have slept

const COUNTED: &str = "__counted";
const TEXT: &str = "__text"; // counts only texts
const SLICED: &str = "__sliced";
const DEEP: &str = "__deep";
const STORED: &str = "__stored";
const DIVISOR: &str = "__divisor";
const TURN: &str = "__turn"; // an iteration of a loop, or a call of a macro

thread_local! {
    static WORK_BYTES: Cell<usize> = const { Cell::new(0) };
    static WORK_LIMIT: Cell<usize> = const { Cell::new(0) };
    static LAST_LOOK: Cell<Option<Instant>> = const { Cell::new(None) };
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// `input_bytes`: of the messages, tools and variables.
pub(crate) fn begin_rendering(input_bytes: usize) {
    WORK_BYTES.set(0);
    let limit = MIN_WORK_BYTES.saturating_add(input_bytes.saturating_mul(WORK_PER_INPUT_BYTE));
    WORK_LIMIT.set(limit.min(MAX_WORK_BYTES));
    LAST_LOOK.set(Some(Instant::now()));
    TIME.set(Duration::ZERO);
}

type Checked<T> = std::result::Result<T, minijinja::Error>;

fn refuse<T>(text: String) -> Checked<T> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
}

/// Counts a value of `num_bytes` bytes.
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

/// Counts work that takes as long as reading `num_bytes` bytes.
pub(crate) fn charge_work(num_bytes: usize) -> Checked<()> {
    let sum = WORK_BYTES.get().saturating_add(num_bytes);
    let limit = WORK_LIMIT.get();
    if sum > limit {
        return refuse(format!("the template reads and makes values of more than {limit} bytes in all"));
    }
    WORK_BYTES.set(sum);
    let now = Instant::now();
    let gap = LAST_LOOK.replace(Some(now)).map_or(Duration::ZERO, |last| now - last);
    TIME.set(TIME.get() + gap.min(MAX_GAP));
    if TIME.get() > MAX_TIME {
        let seconds = MAX_TIME.as_secs();
        return refuse(format!("the template was stopped after {seconds} s: does it loop over long texts?"));
    }
    Ok(())
}

/// Counts the characters of a text, if it is one.
pub(crate) fn charge_chars(value: &Value) -> Checked<()> {
    value.as_str().map_or(Ok(()), |text| charge_work(text.len().saturating_mul(WORK_PER_CHAR)))
}

/// Counts all texts inside a value, and returns their bytes.
pub(crate) fn charge_deep(value: &Value) -> Checked<usize> {
    fn walk(value: &Value, depth: usize) -> Checked<usize> {
        check_depth(depth)?;
        let own = value.as_str().map_or(0, str::len) + WORK_PER_ITEM;
        charge_work(own)?;
        let mut sum = own;
        if matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
            for item in value.try_iter()? {
                sum = sum.saturating_add(walk(&item, depth + 1)?);
                if value.kind() == ValueKind::Map {
                    sum = sum.saturating_add(walk(&value.get_item(&item)?, depth + 1)?);
                }
            }
        }
        Ok(sum)
    }
    walk(value, 0)
}

/// Counts a value that is read. A list joined from others may be far longer than the memory that it takes.
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

/// Counts and returns the value of an operand. A value without a length becomes a list, since joining two such values
/// gives another one without a length.
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
    environment.add_function(TEXT, |value: Value| -> Checked<Value> {
        charge_work(value.as_str().map_or(0, str::len)).map(|()| value)
    });
    environment.add_function(SLICED, |value: Value| -> Checked<Value> {
        charge_chars(&value)?;
        if value.as_str().is_none() {
            charge_work(value.len().unwrap_or(0).saturating_mul(WORK_PER_ITEM))?;
        }
        Ok(value)
    });
    environment.add_function(DEEP, |value: Value| -> Checked<Value> {
        let value = counted(value)?;
        if value.as_str().is_none() {
            charge_deep(&value)?;
        }
        Ok(value)
    });
    environment.add_function(TURN, |num_bytes: usize| charge_work(num_bytes).map(|()| false));
    environment.add_function(STORED, |value: Value| -> Checked<Value> {
        check_stored(&value, 0)?;
        // A value joined from others becomes slower to read with each of them.
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

/// A value stored in a namespace must not contain a namespace, which could be that namespace itself.
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

/// The source with calls inserted. They count values that an instruction reads as a whole (operands of `+`, `~`, `|`,
/// `in` and comparisons, subscripts and the values that they index, arguments, keys of maps, and values that are looped
/// over), count every iteration of a loop, and check divisors and the values stored in namespaces. Line numbers stay
/// the same.
pub(crate) fn rewrite(file: &str, source: String) -> Result<String> {
    let whitespace = WhitespaceConfig { keep_trailing_newline: true, ..WhitespaceConfig::default() };
    let mut tokens = Tokenizer::new(&source, "chat", false, Default::default(), whitespace);
    let mut blocks = Blocks { file, branches: Vec::new() };
    let mut bodies = Bodies { source: &source, open: Vec::new() };
    let mut insertions = Vec::new();
    let mut tag: Vec<(Token, Span)> = Vec::new();
    // Errors are left to the compiler, which reports them better.
    while let Ok(Some((token, span))) = tokens.next_token() {
        match token {
            Token::TemplateData(text) => bodies.add_text(text.len()),
            Token::VariableStart | Token::BlockStart => tag = vec![(token, span)],
            Token::VariableEnd | Token::BlockEnd => {
                blocks.add(&tag)?;
                bodies.add_tag(&tag, end(span), &mut insertions);
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

/// Bodies that may run many times: those of loops, macros and calls.
struct Bodies<'a> {
    source: &'a str,
    open: Vec<(usize, usize)>, // where each begins, and the bytes of its own text so far
}

impl Bodies<'_> {
    fn add_text(&mut self, num_bytes: usize) {
        if let Some((_, sum)) = self.open.last_mut() {
            *sum += num_bytes;
        }
    }

    /// `end`: the end of the tag.
    fn add_tag(&mut self, tag: &[(Token, Span)], end: usize, insertions: &mut Vec<Insertion>) {
        let (Some((Token::BlockStart, _)), Some((Token::Ident(name), _))) = (tag.first(), tag.get(1)) else { return };
        match *name {
            "for" | "macro" | "call" => self.open.push((end, 0)),
            "endfor" | "endmacro" | "endcall" => {
                let Some((at, num_bytes)) = self.open.pop() else { return };
                // White space after the tag is treated as before.
                let sign = self.source[..at].strip_suffix("%}").filter(|tag| tag.ends_with(['-', '+']));
                let sign = sign.map_or("", |tag| &tag[tag.len() - 1..]);
                let text = format!("{{% if {TURN}({num_bytes}) %}}{{% endif {sign}%}}");
                insertions.push(Insertion { at, order: i64::MIN, text });
            }
            _ => {}
        }
    }
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
    is_macro: bool,   // before its parameters, which are no values
}

/// The operand that is being read within one pair of brackets.
#[derive(Default)]
struct Level {
    begin: Option<usize>,
    signed: Option<usize>, // where the operand begins after a sign, if it has attributes, subscripts or calls
    counted_by: Option<&'static str>, // set after an operator that counts
    divides: bool,
    chain: Option<usize>, // start of the chain of products that ends with this operand
    repeats: bool,        // the chain may repeat a text
    is_test: bool,
    of_all: Option<&'static str>, // counts every operand of a call or a subscript
}

impl<'a, 's> Tag<'a, 's> {
    fn new(tokens: &'a [(Token<'s>, Span)], insertions: &'a mut Vec<Insertion>) -> Tag<'a, 's> {
        Tag { tokens, insertions, levels: vec![Level::default()], has_values: true, is_for: false, is_macro: false }
    }

    fn scan(mut self) {
        let mut first = 1;
        let mut stores = false;
        if let (Some((Token::BlockStart, _)), Some((Token::Ident(name), _))) = (self.tokens.first(), self.tokens.get(1))
        {
            self.has_values = !matches!(*name, "filter" | "set" | "call" | "include" | "import" | "from");
            self.is_for = *name == "for";
            self.is_macro = *name == "macro";
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
                self.close(self.tokens.len(), None);
                self.end_product(self.tokens.len());
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
            Token::Plus => self.operator(i, Some(COUNTED)),
            Token::Tilde => self.operator(i, Some(DEEP)),
            Token::Minus if self.levels.last().is_some_and(|level| level.begin.is_none()) => self.sign(i),
            Token::Minus => self.operator(i, None),
            Token::Mul | Token::Pow => self.product(i, matches!(self.tokens[i].0, Token::Mul)),
            Token::Div | Token::FloorDiv | Token::Mod => {
                self.product(i, false);
                if let Some(level) = self.levels.last_mut() {
                    level.divides = true;
                }
            }
            Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => {
                self.operator(i, None);
                self.count_next(DEEP);
            }
            Token::Comma => self.operator(i, None),
            // A key of a map, or a bound of a slice.
            Token::Colon => {
                self.close(i, Some(TEXT));
                self.end_product(i);
                self.reset(None);
            }
            // Only a name stands before it.
            Token::Assign => self.reset(None),
            Token::Ident(word) if !behind_dot && is_keyword(word) => {
                let was_test = self.levels.last().is_some_and(|level| level.is_test && level.begin.is_none());
                let is_of_for = *word == "in" && self.is_for && self.levels.len() == 1;
                if *word == "in" && !was_test && !is_of_for {
                    self.close(i, Some(TEXT));
                    self.end_product(i);
                    self.reset(Some(DEEP));
                } else if *word == "is" {
                    // `is` binds tighter than a product.
                    self.close(i, None);
                    self.reset(None);
                } else {
                    self.operator(i, None);
                }
                if let Some(level) = self.levels.last_mut() {
                    level.is_test = *word == "is" || (*word == "not" && was_test);
                }
                if is_of_for {
                    self.is_for = false;
                    self.count_next(TEXT);
                }
            }
            Token::Pipe => {
                self.count(COUNTED, i);
                if let Some(level) = self.levels.last_mut() {
                    level.signed = None;
                }
            }
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                let is_behind = self.levels.last().is_some_and(|level| level.begin.is_some());
                let is_subscript = is_behind && matches!(self.tokens[i].0, Token::BracketOpen);
                if is_subscript {
                    let function = if self.is_slice(i) { SLICED } else { TEXT };
                    self.count_from(self.levels.last().and_then(|level| level.signed), function, i);
                }
                self.begin(i);
                let is_parameters = std::mem::take(&mut self.is_macro);
                let of_all = if is_behind && !is_parameters { Some(TEXT) } else { None };
                self.levels.push(Level { of_all, ..Level::default() });
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                self.close(i, None);
                self.end_product(i);
                if self.levels.len() > 1 {
                    self.levels.pop();
                }
            }
            _ => self.begin(i),
        }
    }

    /// True if the brackets that open at token `i` have a colon of their own.
    fn is_slice(&self, i: usize) -> bool {
        let mut depth = 0;
        for (token, _) in &self.tokens[i..] {
            match token {
                Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
                Token::BracketClose | Token::ParenClose | Token::BraceClose => depth -= 1,
                Token::Colon if depth == 1 => return true,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        false
    }

    /// Handles the sign of an operand. minijinja binds it tighter than the attributes, subscripts and calls of the
    /// operand, Jinja less tightly, so these get parentheses.
    fn sign(&mut self, i: usize) {
        self.begin(i);
        let Some(last) = self.last_of_chain(i + 1) else { return };
        let (from, to) = (self.tokens[i + 1].1.start_offset as usize, end(self.tokens[last].1));
        self.insertions.push(Insertion { at: from, order: i64::MIN, text: "(".to_owned() });
        self.insertions.push(Insertion { at: to, order: i64::MIN, text: ")".to_owned() });
        if let Some(level) = self.levels.last_mut() {
            level.signed = Some(i + 1);
        }
    }

    /// The last token of the attributes, subscripts and calls of the value that begins at token `i`; None: it has none.
    fn last_of_chain(&self, i: usize) -> Option<usize> {
        let token = |i: usize| self.tokens.get(i).map(|(token, _)| token);
        let mut last = match token(i)? {
            Token::Ident(word) if !is_keyword(word) => i,
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => self.closing(i)?,
            _ => return None,
        };
        let value = last;
        loop {
            match token(last + 1) {
                Some(Token::Dot) if matches!(token(last + 2), Some(Token::Ident(_) | Token::Int(_))) => last += 2,
                Some(Token::BracketOpen | Token::ParenOpen) => last = self.closing(last + 1)?,
                _ => return (last > value).then_some(last),
            }
        }
    }

    /// The token that closes the brackets that open at token `i`.
    fn closing(&self, i: usize) -> Option<usize> {
        let mut depth = 0;
        for (offset, (token, _)) in self.tokens[i..].iter().enumerate() {
            match token {
                Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => depth += 1,
                Token::BracketClose | Token::ParenClose | Token::BraceClose => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(i + offset);
            }
        }
        None
    }

    fn begin(&mut self, i: usize) {
        if let Some(level) = self.levels.last_mut() {
            level.begin.get_or_insert(i);
        }
    }

    fn operator(&mut self, i: usize, counted_by: Option<&'static str>) {
        self.close(i, counted_by);
        self.end_product(i);
        self.reset(counted_by);
    }

    /// Handles an operator that binds as tightly as `*`, or more tightly.
    fn product(&mut self, i: usize, repeats: bool) {
        self.close(i, None);
        if let Some(level) = self.levels.last_mut() {
            let (chain, repeats) = (level.chain.or(level.begin), repeats || level.repeats);
            *level = Level { chain, repeats, of_all: level.of_all, ..Level::default() };
        }
    }

    /// A repeated text is counted after it is made; the engine bounds its length.
    fn end_product(&mut self, i: usize) {
        if let Some(Level { chain: Some(chain), begin: Some(_), repeats: true, .. }) = self.levels.last() {
            self.call(COUNTED, *chain, i);
        }
    }

    fn reset(&mut self, counted_by: Option<&'static str>) {
        if let Some(level) = self.levels.last_mut() {
            *level = Level { counted_by, of_all: level.of_all, ..Level::default() };
        }
    }

    fn count_next(&mut self, function: &'static str) {
        if let Some(level) = self.levels.last_mut() {
            level.counted_by = Some(function);
        }
    }

    /// Ends an operand before token `i`.
    fn close(&mut self, i: usize, counted_by: Option<&'static str>) {
        let Some(level) = self.levels.last() else { return };
        if let Some(function) = level.counted_by.or(counted_by).or(level.of_all) {
            self.count(function, i);
        }
        if let Some(Level { begin: Some(begin), divides: true, is_test: false, .. }) = self.levels.last() {
            self.call(DIVISOR, *begin, i);
        }
    }

    fn count(&mut self, function: &str, i: usize) {
        self.count_from(None, function, i);
    }

    /// Counts the operand before token `i`, or its part from token `part` on.
    fn count_from(&mut self, part: Option<usize>, function: &str, i: usize) {
        let Some(Level { begin: Some(begin), is_test: false, .. }) = self.levels.last() else { return };
        let begin = part.unwrap_or(*begin);
        // Literals need no counting, as they are no longer than the source.
        let is_name = |token: &Token| matches!(token, Token::Ident(_) | Token::ParenClose | Token::BracketClose);
        if begin >= i || !is_name(&self.tokens[i - 1].0) {
            return;
        }
        self.call(function, begin, i);
    }

    /// Inserts a call around an operand. A later call encloses earlier calls around the same operand.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the last check had been this long ago.
    fn pass(time: Duration) {
        let last = LAST_LOOK.get().expect("a rendering");
        LAST_LOOK.set(Some(last.checked_sub(time).expect("a machine that has run that long")));
    }

    #[test]
    fn a_rendering_ends_after_its_time() {
        let wait = || {
            pass(MAX_GAP);
            charge_work(0)
        };
        begin_rendering(0);
        for _ in 0..9 {
            wait().expect("within the limit");
        }
        let error = (0..2).try_for_each(|_| wait()).expect_err("above the limit");
        assert!(error.to_string().contains("the template was stopped after 10 s"), "{error}");
        begin_rendering(0);
        charge_work(0).expect("each rendering has its own time");
    }

    #[test]
    fn time_in_which_the_machine_slept_does_not_count() {
        begin_rendering(0);
        for _ in 0..3 {
            pass(Duration::from_secs(3));
            charge_work(0).expect("one second is counted");
        }
    }
}
