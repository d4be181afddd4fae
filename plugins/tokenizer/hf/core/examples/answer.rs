//! answer DIRECTORY: answers requests, one JSON object per line, for comparisons with other implementations. {"encode":
//! text, "special": bool} {"decode": ids, "keep_special": bool} {"info": true} {"token": id} {"render": {"messages",
//! "tools", "variables", "template", "time", "generation_prompt", "spans"}}
use chassis_hf_core::{Chat, Encoded, Error, Result, Tokenizer};
use serde_json::{json, Value};
use std::io::{BufRead, Write};

fn main() {
    let directory = std::env::args().nth(1).expect("answer DIRECTORY");
    let tokenizer = match Tokenizer::open(directory.as_ref()) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            println!("{}", failure(&error));
            return;
        }
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let answer = answer(&tokenizer, &request).unwrap_or_else(|error| failure(&error));
        writeln!(out, "{answer}").expect("stdout");
        if request.get("flush").is_some() {
            out.flush().expect("stdout");
        }
    }
}

fn failure(error: &Error) -> Value {
    json!({"error": error.message, "kind": format!("{:?}", error.kind)})
}

fn answer(tokenizer: &Tokenizer, request: &Value) -> Result<Value> {
    let flag = |name: &str| request[name].as_bool().unwrap_or(false);
    if let Some(text) = request["encode"].as_str() {
        let mut out = Encoded::default();
        tokenizer.encode(text, flag("special"), &mut out)?;
        return Ok(json!({"ids": out.ids, "begin": out.begin, "end": out.end}));
    }
    if let Some(ids) = request["decode"].as_array() {
        let ids: Vec<i32> = ids.iter().map(|id| id.as_i64().unwrap_or(-1) as i32).collect();
        return Ok(json!({"text": String::from_utf8_lossy(&tokenizer.decode(&ids, flag("keep_special"))?)}));
    }
    if let Some(id) = request["token"].as_i64() {
        let (flags, text) = tokenizer.token(id as i32)?;
        return Ok(json!({"flags": flags, "text": text}));
    }
    if request.get("info").is_some() {
        let info = tokenizer.info();
        return Ok(json!({"bos_id": info.bos_id, "eos_id": info.eos_id, "pad_id": info.pad_id, "unk_id": info.unk_id,
            "vocab_size": info.vocab_size, "adds_bos": info.adds_bos, "fingerprint": info.fingerprint,
            "chat_template": info.chat_template}));
    }
    render(tokenizer, &request["render"])
}

fn render(tokenizer: &Tokenizer, request: &Value) -> Result<Value> {
    let text =
        |name: &str| request.get(name).filter(|value| !value.is_null()).map(Value::to_string).unwrap_or_default();
    let (messages, tools, variables) = (text("messages"), text("tools"), text("variables"));
    let rendered = tokenizer.render(&Chat {
        messages_json: &messages,
        tools_json: &tools,
        variables_json: &variables,
        template_text: request["template"].as_str().unwrap_or_default(),
        unix_time_s: request["time"].as_i64().unwrap_or(0),
        generation_prompt: request["generation_prompt"].as_bool().unwrap_or(false),
        spans: request["spans"].as_bool().unwrap_or(false),
    })?;
    let spans: Vec<Value> =
        rendered.spans.iter().map(|span| json!([span.leaf, span.message, span.begin, span.end])).collect();
    Ok(json!({"text": rendered.text, "spans": spans}))
}
