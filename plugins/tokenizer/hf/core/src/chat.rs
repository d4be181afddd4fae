//! A conversation rendered by a chat template, as transformers' apply_chat_template does it.
use crate::error::{Error, Result};
use crate::jinja::{Compiled, Templates};
use crate::spans;
use crate::wide;
use serde_json::{Map, Value};

/// As CHASSIS_LEAF_… in chassis/kind/tokenizer.h.
pub const LEAF_CONTENT: u32 = 1;
pub const LEAF_REASONING: u32 = 2;
pub const LEAF_TOOL_CALLS: u32 = 3;
pub const LEAF_GENERATION: u32 = 4;

/// Empty texts are left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chat<'a> {
    pub messages_json: &'a str,
    pub tools_json: &'a str,
    pub variables_json: &'a str,
    pub template_text: &'a str,
    pub unix_time_s: i64,
    pub generation_prompt: bool,
    pub spans: bool,
}

/// Bytes [begin, end) of the text that come from a message of the assistant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub leaf: u32,
    pub message: u64,
    pub begin: u64,
    pub end: u64,
}

#[derive(Clone, Debug)]
pub struct Rendered {
    pub text: String,
    pub spans: Vec<Span>, // in the order of `begin`, without overlap
}

/// Names under which a message may have its reasoning; the first is the one that templates read.
pub(crate) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

pub(crate) type Message = Map<String, Value>;

/// The values shared by all renderings of one conversation.
pub(crate) struct Scene<'a> {
    pub(crate) template: &'a Compiled,
    pub(crate) chat: &'a Chat<'a>,
    variables: Map<String, Value>,
    has_wide_integers: bool,
}

impl Scene<'_> {
    pub(crate) fn render(&self, messages: &[Message], marks: Option<(char, char)>) -> Result<String> {
        let mut variables = self.variables.clone();
        variables.insert("messages".to_owned(), Value::Array(messages.iter().cloned().map(Value::Object).collect()));
        let chat = self.chat;
        let input_bytes = [chat.messages_json, chat.tools_json, chat.variables_json].map(str::len).iter().sum();
        let variables = if self.has_wide_integers {
            wide::to_value(&Value::Object(variables))
        } else {
            minijinja::Value::from_serialize(&variables)
        };
        self.template.render(&variables, input_bytes, chat.unix_time_s, marks)
    }
}

pub(crate) fn render(templates: &Templates, is_added: &dyn Fn(&str) -> bool, chat: &Chat) -> Result<Rendered> {
    let texts = [chat.messages_json, chat.tools_json, chat.variables_json];
    let mut marked = texts.map(wide::marked);
    if marked.iter().any(Option::is_some) && texts.iter().any(|text| wide::has_mark(text)) {
        marked = [const { None }; 3];
    }
    let text_of = |i: usize| marked[i].as_deref().unwrap_or(texts[i]);
    let messages = messages(text_of(0))?;
    let tools = match text_of(1) {
        "" => Value::Null,
        text => parse("tools", text)?,
    };
    if !tools.is_null() && !tools.is_array() {
        return Err(Error::invalid("the tools are not a JSON array"));
    }
    let template = templates.choose(chat.template_text, tools.is_array())?;
    let mut variables = Map::new();
    for (name, text) in &templates.special_tokens {
        variables.insert(name.clone(), Value::String(text.clone()));
    }
    variables.insert("documents".to_owned(), Value::Null);
    if !chat.variables_json.is_empty() {
        let Value::Object(further) = parse("variables", text_of(2))? else {
            return Err(Error::invalid("the variables of the chat template are not a JSON object"));
        };
        if let Some(name) =
            ["messages", "tools", "add_generation_prompt"].into_iter().find(|name| further.contains_key(*name))
        {
            return Err(Error::invalid(format!("'{name}' cannot be a further variable of the chat template")));
        }
        variables.extend(further);
    }
    variables.insert("tools".to_owned(), tools);
    variables.insert("add_generation_prompt".to_owned(), Value::Bool(chat.generation_prompt));

    let has_wide_integers = marked.iter().any(Option::is_some);
    let scene = Scene { template: &template, chat, variables, has_wide_integers };
    let text = scene.render(&messages, None)?;
    let spans = if chat.spans { spans::find(&scene, is_added, &messages, &text)? } else { Vec::new() };
    Ok(Rendered { text, spans })
}

fn parse(what: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("the {what} are not JSON: {error}")))
}

/// Parses messages as transformers prepares them: keys with null are dropped, and reasoning gets the name that
/// templates read.
fn messages(text: &str) -> Result<Vec<Message>> {
    let Value::Array(list) = parse("messages", text)? else {
        return Err(Error::invalid("the messages are not a JSON array"));
    };
    if list.is_empty() {
        return Err(Error::invalid("a conversation has at least one message"));
    }
    let objects = list.into_iter().enumerate().map(|(i, message)| match message {
        Value::Object(object) => Ok(prepare(object)),
        _ => Err(Error::invalid(format!("message {i} is not a JSON object"))),
    });
    objects.collect()
}

fn prepare(mut message: Message) -> Message {
    message.retain(|_, value| !value.is_null());
    if let Some(reasoning) = REASONING.iter().find_map(|name| message.get(*name)).cloned() {
        if !message.contains_key("thinking") {
            message.shift_insert(0, "thinking".to_owned(), reasoning.clone());
        }
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    message
}
