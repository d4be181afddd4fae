//! The files of a model directory. Missing optional files are empty; a file that cannot be used is refused by its name.
use crate::error::{Error, ErrorKind, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

pub(crate) struct Template {
    pub(crate) name: String, // "default", "tool_use", …
    pub(crate) file: String, // as error messages name it
    pub(crate) source: String,
}

pub(crate) struct Directory {
    path: PathBuf,
    pub(crate) tokenizer_json: Vec<u8>,
    pub(crate) config: Map<String, Value>,             // tokenizer_config.json
    pub(crate) special_tokens_map: Map<String, Value>, // special_tokens_map.json
    pub(crate) added_tokens: Map<String, Value>,       // added_tokens.json
    pub(crate) templates: Vec<Template>,
}

impl Directory {
    pub(crate) fn read(path: &Path) -> Result<Directory> {
        if !path.is_dir() {
            return Err(not_found(format!("{}: not a directory", path.display())));
        }
        let tokenizer_json = match read(&path.join("tokenizer.json"))? {
            Some(content) => content,
            None => return Err(without_tokenizer_json(path)),
        };
        let mut directory = Directory {
            path: path.to_owned(),
            tokenizer_json,
            config: object(&path.join("tokenizer_config.json"))?,
            special_tokens_map: object(&path.join("special_tokens_map.json"))?,
            added_tokens: object(&path.join("added_tokens.json"))?,
            templates: Vec::new(),
        };
        directory.read_templates()?;
        Ok(directory)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Template files replace all templates of tokenizer_config.json, as in HF; chat_template.json, which processors
    /// used earlier, is read if there is nothing else.
    fn read_templates(&mut self) -> Result<()> {
        let default = self.path.join("chat_template.jinja");
        if let Some(source) = text(&default)? {
            self.add_template("default", &default, source);
        }
        let folder = self.path.join("additional_chat_templates");
        for file in sorted_files(&folder)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let (Some(name), Some(source)) = (name.strip_suffix(".jinja"), text(&file)?) {
                self.add_template(name, &file, source);
            }
        }
        if self.templates.is_empty() {
            let value = self.config.get("chat_template").cloned().unwrap_or_default();
            self.add_templates("tokenizer_config.json", &value)?;
        }
        if self.templates.is_empty() {
            let value = object(&self.path.join("chat_template.json"))?.remove("chat_template").unwrap_or_default();
            self.add_templates("chat_template.json", &value)?;
        }
        Ok(())
    }

    fn add_template(&mut self, name: &str, file: &Path, source: String) {
        self.templates.push(Template { name: name.to_owned(), file: file.display().to_string(), source });
    }

    /// A template, a list of {name, template}, or an object of templates by name.
    fn add_templates(&mut self, file: &str, value: &Value) -> Result<()> {
        let path = self.path.join(file);
        match value {
            Value::Null => {}
            Value::String(source) => self.add_template("default", &path, source.clone()),
            Value::Object(named) if named.values().all(Value::is_string) => {
                for (name, source) in named {
                    self.add_template(name, &path, source.as_str().unwrap_or_default().to_owned());
                }
            }
            Value::Array(list) => {
                for entry in list {
                    let member = |key: &str| entry.get(key).and_then(Value::as_str);
                    match (member("name"), member("template")) {
                        (Some(name), Some(source)) => self.add_template(name, &path, source.to_owned()),
                        _ => return Err(wrong_templates(&path)),
                    }
                }
            }
            _ => return Err(wrong_templates(&path)),
        }
        Ok(())
    }
}

fn wrong_templates(path: &Path) -> Error {
    Error::invalid(format!("{}: chat_template is neither a text nor a list of {{name, template}}", path.display()))
}

fn not_found(message: String) -> Error {
    Error { kind: ErrorKind::NotFound, message }
}

fn without_tokenizer_json(path: &Path) -> Error {
    let others = ["tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt", "spiece.model"];
    let found: Vec<&str> = others.into_iter().filter(|name| path.join(name).exists()).collect();
    if found.is_empty() {
        return not_found(format!("{}: there is no tokenizer.json", path.display()));
    }
    not_found(format!(
        "{0}: there is {1} but no tokenizer.json, which is the only form read here; make one with Python: \
         transformers.AutoTokenizer.from_pretrained(\"{0}\").save_pretrained(\"{0}\")",
        path.display(),
        found.join(" and ")
    ))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::invalid(format!("{}: {error}", path.display()))),
    }
}

fn text(path: &Path) -> Result<Option<String>> {
    let Some(content) = read(path)? else { return Ok(None) };
    let text = String::from_utf8(content).map_err(|error| {
        Error::invalid(format!("{}: not UTF-8 at byte {}", path.display(), error.utf8_error().valid_up_to()))
    })?;
    Ok(Some(text))
}

fn object(path: &Path) -> Result<Map<String, Value>> {
    let Some(content) = read(path)? else { return Ok(Map::new()) };
    match serde_json::from_slice(&content) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::invalid(format!("{}: not a JSON object", path.display()))),
        Err(error) => Err(Error::invalid(format!("{}:{}:{}: {error}", path.display(), error.line(), error.column()))),
    }
}

fn sorted_files(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.map_err(|error| Error::invalid(format!("{}: {error}", folder.display())))?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}
