// The tokenizer "hf": the files of HF model directories, their chat templates, and training of a vocabulary. All of it
// is in the crate chassis-hf-core; this file connects it to the host.
use chassis::tokenizer::{Chat, Encoded, Files, Info, Rendered, Span, Texts, Token, Tokenizer, Vocabulary};
use chassis::{Code, Error, Host, Member, Result};
use chassis_hf_core as core;
use std::mem::take;
use std::path::Path;

struct Hf {
    opened: Option<core::Tokenizer>,
}

impl Hf {
    fn opened(&self) -> Result<&core::Tokenizer> {
        self.opened.as_ref().ok_or_else(|| Error::new(Code::FailedPrecondition, "no model directory is open"))
    }
}

impl Member for Hf {
    const DOC: &'static str = "tokenizers and chat templates of HF model directories";

    fn create(_host: Host) -> Result<Self> {
        Ok(Hf { opened: None })
    }
}

impl Tokenizer for Hf {
    const READS_FILES: bool = true;
    const RENDERS: bool = true;
    const TRAINS: bool = true;

    fn open(&mut self, directory: Option<&Path>) -> Result<()> {
        let directory = directory.ok_or_else(|| {
            Error::invalid(
                "tokenizer 'hf' needs a model directory with tokenizer.json: set [tokenizer] path, or [model] path to \
                 a directory that has one",
            )
        })?;
        self.opened = Some(core::Tokenizer::open(directory).map_err(error)?);
        Ok(())
    }

    fn info(&self) -> Result<Info<'_>> {
        let info = self.opened()?.info();
        let id = |id: i32| (id >= 0).then_some(id);
        Ok(Info {
            bos_id: id(info.bos_id),
            eos_id: id(info.eos_id),
            pad_id: id(info.pad_id),
            unk_id: id(info.unk_id),
            vocab_size: info.vocab_size,
            adds_bos: info.adds_bos,
            fingerprint: &info.fingerprint,
            chat_template: &info.chat_template,
        })
    }

    fn encode(&self, text: &str, special: bool, out: &mut Encoded) -> Result<()> {
        // Both sides have the same three lists, so they are moved without a copy.
        let mut encoded =
            core::Encoded { ids: take(&mut out.ids), begin: take(&mut out.begin), end: take(&mut out.end) };
        self.opened()?.encode(text, special, &mut encoded).map_err(error)?;
        *out = Encoded { ids: encoded.ids, begin: encoded.begin, end: encoded.end };
        Ok(())
    }

    fn decode(&self, ids: &[i32], keep_special: bool) -> Result<Vec<u8>> {
        self.opened()?.decode(ids, keep_special).map_err(error)
    }

    fn token(&self, id: i32) -> Result<Token<'_>> {
        let (flags, text) = self.opened()?.token(id).map_err(error)?;
        Ok(Token { text, flags })
    }

    fn id_of(&self, text: &str) -> Result<Option<i32>> {
        let id = self.opened()?.id_of(text);
        Ok((id >= 0).then_some(id))
    }

    fn render(&self, chat: &Chat<'_>) -> Result<Rendered> {
        let rendered = self.opened()?.render(&core::Chat {
            messages_json: chat.messages_json,
            tools_json: chat.tools_json,
            variables_json: chat.variables_json,
            template_text: chat.template_text,
            unix_time_s: chat.unix_time_s,
            generation_prompt: chat.generation_prompt,
            spans: chat.spans,
        });
        let rendered = rendered.map_err(error)?;
        let spans = rendered.spans.iter();
        let spans = spans.map(|s| Span { leaf: s.leaf, message: s.message, begin: s.begin, end: s.end }).collect();
        Ok(Rendered { text: rendered.text, spans })
    }

    fn train(&self, vocabulary: &Vocabulary, texts: &mut Texts<'_>, files: &mut Files<'_>) -> Result<()> {
        // An error of the host is returned unchanged, not as the text in which the core passes it on.
        let mut of_host = None;
        let mut next = || match texts.next() {
            Ok(text) => Ok(text.map(String::from)),
            Err(error) => {
                let message = error.message().to_owned();
                of_host = Some(error);
                Err(core::Error { kind: core::ErrorKind::Internal, message })
            }
        };
        let Vocabulary { vocab_size, min_frequency, num_threads } = *vocabulary;
        let made = core::Tokenizer::train(vocab_size, min_frequency, num_threads, &mut next);
        match of_host {
            Some(error) => Err(error),
            None => made.map_err(error)?.iter().try_for_each(|(name, content)| files.write(name, content)),
        }
    }
}

fn error(error: core::Error) -> Error {
    let code = match error.kind {
        core::ErrorKind::InvalidArgument => Code::InvalidArgument,
        core::ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        core::ErrorKind::OutOfRange => Code::OutOfRange,
        core::ErrorKind::NotFound => Code::NotFound,
        core::ErrorKind::Internal => Code::Internal,
    };
    Error::new(code, error.message)
}

chassis::plugin! {
    tokenizer: Hf;
    "file=tokenizer.json", "file=tokenizer.model", "swappable=1", "license=Apache-2.0"
}
