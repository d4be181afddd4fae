// A tokenizer that uses everything the crate chassis offers, and panics where its option says.
use chassis::tokenizer::{Chat, Encoded, Files, Info, Rendered, Span, Texts, Token, Tokenizer, Vocabulary};
use chassis::{Code, Error, Host, Level, Member, Opt, Result, Str, sys};
use std::panic::panic_any;
use std::path::Path;

struct Probe {
    host: Host,
    panics_in: String,
    fingerprint: String,
}

/// Panics again when it is dropped.
struct Bomb;
impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload of a panic panics");
    }
}

impl Probe {
    fn may_panic(&self, function: &str) {
        if self.panics_in == function {
            panic!("{function} was told to panic");
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.may_panic("drop");
    }
}

impl Member for Probe {
    const DOC: &'static str = "characters as tokens, for tests";
    const OPTIONS: &'static [Opt] = &[
        Opt::string("panics_in").default("\"\"").doc("a function"),
        Opt::bool("flag").default("true"),
        Opt::int("count").default("7").range(1.0, 9.0),
        Opt::float("scale").default("0.5"),
        Opt::string("mode").default("\"a\"").choices(&[Str::new("a"), Str::new("b")]),
        Opt::int_list("sizes").default("[1, 2]"),
    ];

    fn create(host: Host) -> Result<Self> {
        let panics_in = host.option_str("panics_in")?;
        let fingerprint = format!(
            "{} {} {} {} {} {}",
            host.option_bool("flag")?,
            host.option_int("count")?,
            host.option_float("scale")?,
            host.option_str("mode")?,
            host.option_json("sizes")?,
            host.option_origin("count")?
        );
        host.log(Level::Info, "created")?;
        let probe = Probe { host, panics_in, fingerprint };
        probe.may_panic("create");
        Ok(probe)
    }

    fn prepare(&mut self) -> Result<()> {
        self.may_panic("prepare");
        Ok(())
    }
}

impl Tokenizer for Probe {
    const READS_FILES: bool = true;
    const RENDERS: bool = true;
    const TRAINS: bool = true;

    fn open(&mut self, directory: Option<&Path>) -> Result<()> {
        self.may_panic("open");
        let directory = directory.ok_or_else(|| Error::invalid("it needs a directory"))?;
        self.fingerprint = directory.display().to_string();
        Ok(())
    }

    fn info(&self) -> Result<Info<'_>> {
        self.may_panic("info");
        let chat_template = "{{ messages }}";
        Ok(Info {
            bos_id: Some(1),
            vocab_size: 0x110000,
            adds_bos: true,
            fingerprint: &self.fingerprint,
            chat_template,
            ..Info::default()
        })
    }

    fn encode(&self, text: &str, special: bool, out: &mut Encoded) -> Result<()> {
        match text {
            "value" => panic_any(Bomb),
            "thread" => {
                let thread = std::thread::spawn(|| panic!("in a thread of the library"));
                std::panic::resume_unwind(thread.join().expect_err("the thread panics"));
            }
            "index" => out.ids[7] += 1,
            _ => self.may_panic("encode"),
        }
        for (begin, c) in text.char_indices() {
            out.push(if special { -(c as i32) } else { c as i32 }, begin, begin + c.len_utf8());
        }
        Ok(())
    }

    fn decode(&self, ids: &[i32], keep_special: bool) -> Result<Vec<u8>> {
        let text: Option<String> = ids.iter().map(|&id| char::from_u32(id as u32)).collect();
        let text =
            text.ok_or_else(|| Error::new(Code::OutOfRange, "no character").with("num_ids", ids.len().to_string()))?;
        Ok(if keep_special { text.to_uppercase() } else { text }.into_bytes())
    }

    fn token(&self, id: i32) -> Result<Token<'_>> {
        if id != 1 {
            self.host.count("tokens", &format!("id {id}"))?;
        }
        Ok(Token { text: "<s>", flags: sys::CHASSIS_TOKEN_SPECIAL })
    }

    fn id_of(&self, text: &str) -> Result<Option<i32>> {
        Ok((text == "<s>").then_some(1))
    }

    fn render(&self, chat: &Chat<'_>) -> Result<Rendered> {
        let text = format!(
            "{}|{}|{}|{}|{}|{}",
            chat.messages_json,
            chat.tools_json,
            chat.variables_json,
            chat.template_text,
            chat.unix_time_s,
            chat.generation_prompt
        );
        let span = Span { leaf: sys::CHASSIS_LEAF_CONTENT, message: 0, begin: 0, end: text.len() as u64 };
        Ok(Rendered { text, spans: if chat.spans { vec![span] } else { Vec::new() } })
    }

    fn train(&self, vocabulary: &Vocabulary, texts: &mut Texts<'_>, files: &mut Files<'_>) -> Result<()> {
        let mut all = format!("{} {} {}", vocabulary.vocab_size, vocabulary.min_frequency, self.host.num_threads()?);
        while let Some(text) = texts.next()? {
            all += text;
        }
        files.write("vocab.txt", all.as_bytes())
    }
}

chassis::plugin! { tokenizer: Probe; "license=Apache-2.0", "requires=chassis.options/1", "requires=chassis.log/1" }
